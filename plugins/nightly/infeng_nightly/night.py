"""A run of `infeng nightly`: measure, judge by the history, measure again what seems worse, remember."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from infeng_bench.reports import machine
from infeng_demo import model_dir

from infeng_core.api import UsageError, say
from infeng_nightly import history, judging, report, running
from infeng_nightly.figures import OURS, Figure
from infeng_nightly.history import History, Run
from infeng_nightly.judging import Judgement
from infeng_nightly.measurements import measurements

ROUNDS = {True: 5, False: 7}
"""Readings of a figure, by ``--quick``."""
AGAIN = 2
"""How often a figure that seems worse is measured again before it is named."""
FULL = ("tinyllama-1.1b",)
"""Models measured besides the demo model if none is named."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, judge, remember and print; return 1 if a figure is worse or a measurement failed.

    Raises UsageError for a history that cannot be used.
    """
    if arguments.model is not None and len(set(arguments.model)) < len(arguments.model):
        raise UsageError("--model", "a model is given twice", "name each model once")
    models = arguments.model or [str(model_dir()), *(() if arguments.quick else FULL)]
    names = [running.model_name(model) for model in models]
    if twice := next((name for name in names if names.count(name) > 1), None):
        why = f"two of the models have the name {twice} in a history"
        raise UsageError("--model", why, "measure them for two histories, or rename a folder")
    with history.opened(arguments.history) as file:
        return _night(arguments, models, file)


def _night(arguments: argparse.Namespace, models: Sequence[str], file: History) -> int:
    """Measure and judge with an open history."""
    earlier = file.runs()
    options = running.Options(
        arguments.texts, arguments.format, arguments.threads, arguments.engines, arguments.assignments
    )
    wanted = measurements(quick=arguments.quick)
    night = running.Night()
    running.measure(night, wanted, models, options, arguments.rounds or ROUNDS[arguments.quick], _progress)
    run = _run(night, arguments)
    judged = judge(run, earlier)
    for _ in range(AGAIN):
        suspects = {(one.figure.model, one.figure.what) for one in judged if one.verdict == "worse"}
        if not suspects:
            break
        _progress(f"{len(suspects)} measurements seem worse and are made again")
        again = running.Night()
        running.measure(
            again, wanted, models, options, arguments.rounds or ROUNDS[arguments.quick], _progress, suspects
        )
        judged = confirmed(judged, judge(_run(again, arguments), earlier))
        night.failures += again.failures
    file.append(_run(night, arguments, judged))
    say(*report.lines(judged, processor=run.processor))
    return int(bool(night.failures) or any(one.verdict == "worse" for one in judged))


def judge(run: Run, earlier: Sequence[Run]) -> list[Judgement]:
    """Judge every figure of our engine by the earlier runs of the same processor with the same settings."""
    past: dict[tuple[str, ...], list[Figure]] = {}
    for other in earlier:
        if other.processor == run.processor and other.settings == run.settings:
            for figure in other.figures:
                past.setdefault(figure.key, []).append(figure)
    return [judging.judge(figure, past.get(figure.key, [])) for figure in run.figures if figure.engine == OURS]


def confirmed(first: Sequence[Judgement], again: Sequence[Judgement]) -> list[Judgement]:
    """Return the first judgements, in which a figure is worse only if it was worse again."""
    second = {one.figure.key: one for one in again}
    found = []
    for one in first:
        other = second.get(one.figure.key)
        is_confirmed = other is None or other.verdict == "worse"
        found.append(one if one.verdict != "worse" or is_confirmed else replace(one, verdict="same"))
    return found


def _run(night: running.Night, arguments: argparse.Namespace, judged: Sequence[Judgement] = ()) -> Run:
    settings = {
        "quick": arguments.quick, "format": arguments.format, "threads": arguments.threads,
        "set": ", ".join(arguments.assignments), "texts": ", ".join(Path(text).name for text in arguments.texts),
    }  # fmt: skip
    return Run(
        datetime.now(UTC).isoformat(timespec="seconds"),
        night.machine or machine.machine(),
        night.figures(),
        tuple(one.to_dict() for one in judged),
        arguments.commit or running.commit(),
        machine.versions(),
        {model: tuple(sorted(own)) for model, own in night.kernels.items()},
        {name: value for name, value in settings.items() if value},
    )


def _progress(text: str) -> None:
    say(text, to_stderr=True)
