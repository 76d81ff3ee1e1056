"""One night: every measurement by the functions of its verb, in rounds, so that readings are spread over time."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infeng_bench.command import Bench
from infeng_bench.options import settle_model
from infeng_bench.reports import results
from infeng_quality.command import Quality

from infeng_core.api import InfengError
from infeng_core.api.servers import Parser
from infeng_nightly.figures import OURS, Figure
from infeng_nightly.measurements import INTERVALS, QUALITY, Measurement

TEXT = Path(__file__).with_name("text.txt")
"""A text for quality, written for this wheel."""

FAILURES = (InfengError, MemoryError, OSError)
"""Errors of one measurement after which the others are still made."""

GIT_SECONDS = 10


@dataclass(frozen=True)
class Options:
    """What the user chose for all measurements."""

    texts: Sequence[str] = ()
    format: str | None = None
    threads: int | None = None
    engines: str | None = None
    settings: Sequence[str] = ()

    def words(self) -> list[str]:
        """Return them as words of a verb."""
        found = ["--format", self.format] if self.format else []
        found += ["--threads", str(self.threads)] if self.threads else []
        return found + [word for one in self.settings for word in ("--set", one)]


@dataclass
class Night:
    """The readings of one run so far."""

    readings: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    facts: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    quiet: dict[tuple[str, ...], list[bool]] = field(default_factory=dict)
    kernels: dict[str, set[str]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of all readings."""
        return tuple(
            Figure.of(**self.facts[key], readings=own, quiet=2 * sum(self.quiet[key]) > len(own))
            for key, own in self.readings.items()
        )

    def add(self, measurement: Measurement, model: str, result: Mapping[str, Any]) -> None:
        """Take the figures of a result."""
        self.machine = {**self.machine, **result["machine"]}
        bound = result.get("kernels", [])
        bound = bound.get(OURS, []) if isinstance(bound, Mapping) else bound  # of several engines: by engine
        own = {f"{one['op']}: {one['kernel']}" for one in bound if isinstance(one, Mapping)}
        self.kernels.setdefault(model, set()).update(own)
        for work, engine, figures, quiet in parts(result):
            for name, kind in measurement.kinds:
                value = figures.get(name)
                if value is None or not math.isfinite(value):
                    continue
                facts = {"kind": kind, "model": model, "what": measurement.what, "work": work, "engine": engine}
                where = INTERVALS.get(name)
                if where is not None:
                    facts["interval"] = (figures[f"{where}.low"], figures[f"{where}.high"])
                key = (engine, model, measurement.what, work, kind.label)
                self.facts[key] = facts
                self.readings.setdefault(key, []).append(float(value))
                self.quiet.setdefault(key, []).append(quiet)


def parts(result: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Yield the work, the engine, the figures by their dotted names, and whether the machine was quiet, of each part
    of a result.
    """
    listed = "measurements" in result
    for one in results.measurements(result):
        quiet = bool({**result, **one}.get("contention", {}).get("is_quiet", True))
        work = str(one.get("work", "")) if listed or "engines" in one else ""
        engines: Mapping[str, Mapping[str, Any]] = one.get("engines") or {OURS: one}
        for engine, figures in engines.items():
            yield work, str(engine), dict(results.flat(figures)), quiet


def measure(
    night: Night, wanted: Sequence[Measurement], models: Sequence[str], options: Options, rounds: int,
    say: Callable[[str], object], only: Collection[tuple[str, str]] | None = None,
) -> None:  # fmt: skip
    """Make all measurements ``rounds`` times, round by round; a failed one is reported and the others go on.

    only: pairs (model, what) of the measurements to make.
    """
    failed: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory(prefix="infeng-nightly-") as folder:
        for number in range(rounds):
            for model in models:
                for one in wanted:
                    key = (model_name(model), one.what)
                    skipped = (
                        key in failed or (number > 0 and not one.repeats) or (only is not None and key not in only)
                    )
                    if skipped or not applies(one, model):
                        continue
                    try:
                        night.add(one, key[0], result_of(one, model, options, Path(folder), number))
                    except FAILURES as error:
                        failed.add(key)
                        night.failures.append(f"{key[0]}, {one.verb}: {error}")
                        say(night.failures[-1])
            say(f"round {number + 1} of {rounds}")


def applies(measurement: Measurement, model: str) -> bool:
    """Return whether a measurement can be made with a model: random weights have no quality."""
    return measurement.verb != QUALITY or not is_synthetic(model)


def is_synthetic(model: str) -> bool:
    """Return whether a model is a known shape, which `infeng bench` fills with random weights."""
    arguments = argparse.Namespace(model_or_shape=model, model=None, synthetic=None)
    settle_model(arguments)
    return arguments.synthetic is not None


def model_name(model: str) -> str:
    """Return the name of a model in figures: that of its folder or shape, without the path to it."""
    path = Path(model)
    if not path.exists():
        return model
    parent = path.resolve()
    return parent.parent.name if parent.name == "model" else parent.name


def result_of(measurement: Measurement, model: str, options: Options, folder: Path, seed: int) -> dict[str, Any]:
    """Return the result of a verb, whose printed lines are dropped. Raises InfengError."""
    out = folder / "result.json"
    out.unlink(missing_ok=True)
    if measurement.verb == QUALITY:
        words = [model, model, *measurement.words, "--json", str(out), *options.words()]
        words += [word for text in options.texts or [str(TEXT)] for word in ("--texts", text)]
        run, arguments = Quality().run, argparse.Namespace(words=words)
    else:
        words = [measurement.verb, model, *measurement.words, "--seed", str(seed), "--json", str(out), *options.words()]
        if options.engines and measurement.has_peers:
            words += ["--engines", options.engines]
        parser = Parser(prog="infeng bench")
        Bench().configure(parser)
        arguments = parser.parse_args(words)
        run = arguments.run
    with contextlib.redirect_stdout(io.StringIO()):
        run(arguments)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def commit() -> str | None:
    """Return the commit of the working folder, or None."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
