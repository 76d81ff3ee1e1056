"""Options that verbs share, and what happens with a result."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from infeng_bench import contention, results
from infeng_core.api import EngineConfig, UsageError, add_config_options, config_from, detect

if TYPE_CHECKING:
    from infeng_bench.roofline import Roofline

T = TypeVar("T")

UNITS = {"": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument("-t", "--threads", type=positive, metavar="N", help="worker threads (default: usable cores)")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, its format, threads, and the engine's assembly."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--synthetic", metavar="NAME", help="random weights of known shapes, such as tinyllama-1.1b, or a config.json"
    )
    group.add_argument("--model", metavar="PATH", help="a real model: directory or hub name")
    group.add_argument("--format", metavar="F", help="weight format, such as int4-g64")
    add_threads(parser)
    add_config_options(parser)


def add_measurement(parser: argparse.ArgumentParser, rounds: int, *, has_roofline: bool = False) -> None:
    """Add how often is measured, what figures are compared with, the model and the results.

    has_roofline: whether the verb has figures to compare with what the machine can do.
    """
    parser.add_argument("--rounds", type=positive, default=rounds, metavar="N", help=f"readings of each ({rounds})")
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="seed of prompts and values (0)")
    if has_roofline:
        add_roofline(parser)
    else:
        parser.set_defaults(roofline="none")
    add_model(parser)
    add_output(parser)


def add_roofline(parser: argparse.ArgumentParser) -> None:
    """Add ``--roofline``."""
    parser.add_argument(
        "--roofline",
        default="measure",
        metavar="R",
        help="what figures are compared with: measure (default), none, or a result of infeng bench roofline",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--csv``."""
    group = parser.add_argument_group("results")
    group.add_argument("--json", metavar="OUT", help="write the result as JSON; - is standard output")
    group.add_argument("--csv", metavar="OUT", help="write a table; - is standard output")


def config(arguments: argparse.Namespace, **more: object) -> EngineConfig:
    """Return the engine's configuration that the options ask for; ``more`` as in ``config_from``.

    What is measured is computed, whatever was computed before, in steps as large as they may be; a measurement of
    traffic says otherwise (``kv_cache__prefix=None, scheduler__step_ms=None``: as the engine has it).
    """
    steady: dict[str, object] = {"kv_cache__prefix": False, "scheduler__step_ms": 0}
    return config_from(
        arguments, model__format=arguments.format, threads__count=arguments.threads, **{**steady, **more}
    )


def threads(arguments: argparse.Namespace) -> int:
    """Return the number of threads asked for, or one per core that this process may use, within its quota."""
    return detect().place(replace(EngineConfig().threads, count=arguments.threads or "auto")).workers


def model_name(arguments: argparse.Namespace) -> str:
    """Return what results call the model; raises UsageError unless exactly one is named."""
    if (arguments.model is None) == (arguments.synthetic is None):
        why = "none is given" if arguments.model is None else "--model and --synthetic exclude each other"
        raise UsageError("model", why, "give --synthetic NAME or --model PATH")
    if arguments.model is None:
        return f"synthetic:{Path(arguments.synthetic).name}"
    path = Path(arguments.model)
    return path.resolve().name if path.is_dir() else str(arguments.model)


def model_directory(arguments: argparse.Namespace, format: str) -> str:
    """Return what an engine loads: the model named, or the directory of its random weights."""
    model_name(arguments)
    if arguments.model is not None:
        return str(arguments.model)
    from infeng_bench import synthetic

    return str(synthetic.native_directory(arguments.synthetic, format))


def roofline(arguments: argparse.Namespace, threads: int) -> Roofline | None:
    """Return the ceilings to compare with: measured now, read from a file, or none."""
    from infeng_bench import roofline as module

    if arguments.roofline == "none":
        return None
    if arguments.roofline == "measure":
        return module.measure(threads)
    return module.from_result(arguments.roofline, threads)


def deliver(result: Mapping[str, Any], arguments: argparse.Namespace, lines: Iterable[str]) -> None:
    """Write the files that were asked for, and show ``lines`` to people: on stdout unless a result goes there."""
    taken = "-" in (arguments.json, arguments.csv)
    shown = [*lines]
    shown += contention.warnings([result, *result.get("measurements", ())], said="\n".join(shown))
    for line in shown:
        print(line.rstrip(), file=sys.stderr if taken else sys.stdout)
    if arguments.json:
        results.write(arguments.json, result)
    if arguments.csv:
        results.write_csv(arguments.csv, result)


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """Iterate over ``items`` with a bar on standard error where that is a terminal."""
    bar: Iterable[T] = tqdm(items, desc=what, leave=False, disable=None)
    return bar


def columns(table: Iterable[Iterable[object]]) -> list[str]:
    """Return a table's rows as lines: the first column flush left, the others flush right."""
    rows = [[str(cell) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    return [
        "  ".join(cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for i, cell in enumerate(row)) for row in rows
    ]


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def natural(text: str) -> int:
    """Read a whole number of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def rate(text: str) -> float:
    """Read a number of requests a second above 0, or inf."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of requests a second above 0, or inf")
    return number


def counts(text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    return [positive(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    """Read words separated by commas."""
    return [part for part in text.split(",") if part]


def size(text: str) -> int:
    """Read a number of bytes such as 512MB."""
    number = text.rstrip("kKmMgGbB")
    unit = text[len(number) :].lower()
    if not (number.isascii() and number.isdigit()) or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512MB")
    return int(number) * UNITS[unit]
