"""`infeng bench memory`: the memory of models of random weights, compared with `convert --dry-run` and `models`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_bench import options
from infeng_bench.engine.command_line import FORMAT, setting_words
from infeng_bench.models import shapes, synthetic
from infeng_bench.processes import INFENG
from infeng_bench.reports import results
from infeng_core.api import ResourceError, UsageError, add_config_options, available_bytes, cache_root

NAME = "memory"

NEW = 4  # tokens that each model decodes

CHILD = (sys.executable, "-P", "-m", "infeng_bench.engine.footprint")
TIMEOUT = 3600  # seconds for one model: the largest are written to a disk
SAID = ("kv_bytes", "scratch_bytes", "process_bytes", "memory_bytes")


def configure(parser: argparse.ArgumentParser) -> None:
    help = "shapes that are known by name, or config.json files (default: all published ones that fit)"
    parser.add_argument(options.MODEL, metavar="MODEL,MODEL", nargs="?", help=help)
    options.add(parser, "--synthetic", options.words, None, "NAME,NAME", "the same")
    parser.set_defaults(last_positional=options.MODEL)
    options.add(parser, "--format", str, FORMAT, "F", "weight format")
    help = "positions of the one sequence that fills cache and steps"
    parser.add_argument("--context", metavar="N", type=options.positive, default=512, help=help)
    help = "leave out what would take more, such as 12GB (default: than is available)"
    parser.add_argument("--most", metavar="SIZE", type=options.size, help=help)
    options.add_threads(parser)
    add_config_options(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure one model after the other, print and write."""
    if arguments.context <= NEW:
        raise UsageError("--context", f"leaves no room for a prompt before {NEW} tokens", "give at least 16")
    names = arguments.synthetic or [*shapes.SHAPES, *shapes.published()]
    measured: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for name in options.progress(names, NAME):
        one = _one(str(name), arguments)
        (left_out if "why" in one else measured).append(one)
        measured.sort(key=lambda line: line["parameters"])
        result = results.record(
            NAME,
            {"measurements": measured, "left_out": left_out},
            format=arguments.format,
            context=arguments.context,
            threads=options.threads(arguments),
        )
        options.keep(result, arguments)  # the next model may take long
    return options.deliver(result, arguments, table(result))


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a result as the rows of a Markdown table, then the models that were left out."""
    yield "| model | parameters | weights | converting: said, measured | running: said, measured | difference |"
    yield "|---|---|---|---|---|---|"
    for line in result["measurements"]:
        making = f"{_gb(line['convert_bytes'])}, {_gb(line['convert_measured_bytes'])}"
        running = f"{_gb(line['memory_bytes'])}, {_gb(line['measured_bytes'])}"
        cells = (line["model"], f"{line['parameters'] / 1e9:.2f} B", _gb(line["weight_bytes"]), making, running)
        yield f"| {' | '.join(cells)} | {round(100 * (line['ratio'] - 1), 1) + 0.0:+.1f}% |"
    for line in result["left_out"]:
        yield f"{line['model']} was left out: {line['why']}"


@dataclass(frozen=True)
class _Place:
    """Temporary folders of one model."""

    source: Path  # config.json and a tokenizer
    made: Path


def _one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one model, or its forecast with the reason why it is left out."""
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="memory-", dir=root) as folder:
        place = _Place(Path(folder) / "source", Path(folder) / "made")
        place.source.mkdir()
        for file, data in synthetic.side_files(shapes.hugging_face_config(name)).items():
            (place.source / file).write_bytes(data)
        title = Path(name).name.removesuffix(".json").removesuffix(".config")
        said = {"model": title, **_said(place, arguments)}
        why = _why_not(said, place, arguments)
        return {**said, "why": why} if why else {**said, **_measured(said, place, arguments)}


def _said(place: _Place, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the forecast of the commands for a model that consists of config.json and a tokenizer."""
    format = ("--format", arguments.format, *setting_words(arguments))
    convert = _told([*INFENG, "convert", str(place.source), str(place.made), "--dry-run", *format, "--json"])
    [model] = _told([*INFENG, "models", str(place.source), *format, *_settings(arguments), "--json"])
    if "memory_bytes" not in model:
        raise UsageError(f"{place.source.name}", model["why_not"], "give another model or other settings")
    facts = {name: model[name] for name in ("family", "parameters", *SAID)}
    return {**facts, "weight_bytes": convert["nbytes"], "convert_bytes": convert["convert_bytes"]}


def _why_not(said: Mapping[str, Any], place: _Place, arguments: argparse.Namespace) -> str:
    """Return the reason why a model cannot be measured here, or ""."""
    available = available_bytes()
    most = arguments.most if arguments.most is not None else available
    if most is not None and said["memory_bytes"] > most:
        return f"it takes {_gb(said['memory_bytes'])}, {_gb(most)} are allowed"
    free = shutil.disk_usage(place.source).free
    return f"it takes {_gb(said['weight_bytes'])} of disk" if said["weight_bytes"] > free else ""


def _measured(said: Mapping[str, Any], place: _Place, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the model, run it, and return the memory of both."""
    format = ("--format", arguments.format, *setting_words(arguments))
    packed = _told([*CHILD, "pack", str(place.source), "--dest", str(place.made), *format])
    ran = _told([*CHILD, "run", str(place.made), "--new", str(NEW), *format, *_settings(arguments)])
    return {
        "made_bytes": packed["nbytes"],
        "convert_measured_bytes": packed["grown_bytes"],
        "convert_seconds": packed["seconds"],
        **ran,
        "convert_ratio": packed["grown_bytes"] / said["convert_bytes"],
        "ratio": ran["measured_bytes"] / said["memory_bytes"],
    }


def _settings(arguments: argparse.Namespace) -> list[str]:
    """Return settings with which one sequence touches the whole cache and all memory of a step."""
    wanted = {
        "model.context": arguments.context,
        "scheduler.max_batch_tokens": arguments.context,
        "scheduler.max_running": 1,
        "scheduler.step_ms": 0,
        "kv_cache.prefix": "false",
        **({"threads.count": arguments.threads} if arguments.threads else {}),
    }
    theirs = {text.partition("=")[0] for text in arguments.assignments}
    return [word for key, value in wanted.items() if key not in theirs for word in ("--set", f"{key}={value}")]


def _told(command: Sequence[str]) -> Any:
    """Return the JSON output of a command; raises ResourceError if it prints none."""
    what = " ".join(command[len(CHILD) :][:2])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ResourceError(what, f"takes more than {TIMEOUT} s", "give a smaller model, or fewer positions") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ResourceError(what, f"status {done.returncode}: {last}", "run it alone to see its output") from None


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
