"""The engines of a command: their command lines and their processes."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench import beside, options
from infeng_bench.engine.command_line import FORMAT, own_arguments
from infeng_bench.models import synthetic
from infeng_bench.reports import results
from infeng_bench.reports.results import OURS

from infeng_core.api import UsageError, cache_root, unknown_key_remedy
from infeng_peers import environment, exports, known, serve
from infeng_peers.process import EngineProcess


def source(arguments: argparse.Namespace) -> Path:
    """Return the Hugging Face directory of ``--synthetic`` or ``--model``, or the GGUF of ``--model``.

    Raises UsageError if there is neither.
    """
    if arguments.synthetic:
        return synthetic.hf_directory(arguments.synthetic)
    folder = Path(arguments.model).expanduser()
    if exports.is_gguf(folder):
        return _own_formats(arguments, folder)
    if not (folder / "config.json").is_file():
        raise UsageError(str(folder), "no config.json is there", "give a Hugging Face directory, or --synthetic NAME")
    return folder


def _own_formats(arguments: argparse.Namespace, file: Path) -> Path:
    """Return ``file``, whose formats every engine keeps; raises UsageError if ``--format`` is given."""
    if arguments.format:
        raise UsageError("--format", f"{file.name} has formats of its own", "leave it out, or give a directory")
    return file


def commands(arguments: argparse.Namespace, source: Path, threads: int) -> dict[str, list[str]]:
    """Return the command lines of two or more engines by name.

    With several formats in ``--format`` this engine runs once with each, under the format's name, and peers stand
    against the first.
    """
    formats = (arguments.format or "").split(",")
    engines = beside.engines(arguments.engines or OURS, fewest=2 if len(formats) == 1 else 1)
    if len(set(formats)) != len(formats):
        raise UsageError("--format", f"{arguments.format!r} names one twice", "give different formats")
    found = {}
    for name in engines:
        for format in formats if name == OURS else formats[:1]:
            one = argparse.Namespace(**{**vars(arguments), "format": format or None})
            found[format if name == OURS and len(formats) > 1 else name] = command(name, one, source, threads)
    return found


def command(name: str, arguments: argparse.Namespace, source: Path, threads: int) -> list[str]:
    """Return the command line of an engine on ``source``; exports the model for a peer if necessary."""
    if name == OURS:
        ours = own_arguments(arguments, source, threads)
        return [sys.executable, "-P", "-m", "infeng_peers.worker", *ours]
    peer = known.peer(name)
    place = environment.Environment(peer)
    place.require()
    model_path = exports.peer_model(peer, source, arguments.format or FORMAT)
    command = [str(place.python), "-P", str(serve.__file__), str(peer.path), str(model_path)]
    command += ["--threads", str(threads)]
    for text in arguments.option:
        key, equals, _ = text.partition("=")
        owner, dot, setting = key.partition(".")
        if not equals or not dot or owner not in known.NAMES:
            raise UsageError(f"--option {text!r}", "is not PEER.KEY=VALUE", "give one such as llama_cpp.kv=q8_0")
        if owner == name:
            if setting not in peer.OPTIONS:
                raise UsageError(f"--option {text!r}", "unknown", unknown_key_remedy(setting, peer.OPTIONS))
            value, allowed = text.partition("=")[2], peer.CHOICES.get(setting)
            if allowed is not None and value not in allowed:
                raise UsageError(f"--option {text!r}", f"{value!r} is no {setting}", f"give {', '.join(allowed)}")
            command += ["--set", text.partition(".")[2]]
    return command


@contextlib.contextmanager
def running(commands: Mapping[str, Sequence[str]], timeout: float) -> Iterator[list[EngineProcess]]:
    """Load every engine, one after the other; all stay in memory and sleep between measurements."""
    logs = cache_root() / "bench" / "peers"
    with contextlib.ExitStack() as stack:
        engines = []
        for name, command in commands.items():
            engine = EngineProcess(name, command, logs / f"{name}.log", timeout)
            stack.callback(engine.close)
            engine.ready()
            engines.append(engine)
        yield engines


def record(
    kind: str,
    arguments: argparse.Namespace,
    told: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Any],
    **context: Any,
) -> dict[str, Any]:
    """Return a result. told: each engine's introduction, by name. context: as in ``results.record``."""
    details = {name: {"version": one.get("version"), **one.get("details", {})} for name, one in told.items()}
    kernels = {name: one.get("kernels", []) for name, one in told.items()}
    return results.record(
        kind,
        {"engine_details": details, **figures},
        model=options.model_name(arguments),
        seed=arguments.seed,
        settings=list(arguments.assignments) or None,
        kernels=kernels if len(kernels) > 1 else next(iter(kernels.values())),
        **context,
    )
