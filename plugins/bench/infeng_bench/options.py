"""Options that verbs share, and what happens with a result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from infeng_bench import results
from infeng_core.errors import UsageError
from infeng_core.plug.cpu import detect

UNITS = {"": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument("-t", "--threads", type=positive, metavar="N", help="worker threads (default: usable cores)")


def threads(arguments: argparse.Namespace) -> int:
    """Return the number of threads asked for, or one per core that this process may use, within its quota."""
    cpu = detect()
    count: int | None = arguments.threads
    return count or max(1, min(cpu.cores, int(cpu.quota or cpu.cores)))


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--csv``."""
    group = parser.add_argument_group("results")
    group.add_argument("--json", metavar="OUT", help="write the result as JSON; - is standard output")
    group.add_argument("--csv", metavar="OUT", help="write a table; - is standard output")


def deliver(result: Mapping[str, Any], arguments: argparse.Namespace, lines: Iterable[tuple[str, str]]) -> None:
    """Write the files that were asked for, and show ``lines`` to people: on stdout unless a result goes there."""
    taken = "-" in (arguments.json, arguments.csv)
    shown = list(lines)
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:{width}}  {value}".rstrip(), file=sys.stderr if taken else sys.stdout)
    if arguments.json:
        results.write(arguments.json, result)
    if arguments.csv:
        results.write_csv(arguments.csv, result)


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes such as 512MB."""
    number = text.rstrip("kKmMgGbB")
    unit = text[len(number) :].lower()
    if not number.isdigit() or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512MB")
    return int(number) * UNITS[unit]


def counts(text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    return [positive(part) for part in text.split(",")]


def model_directory(arguments: argparse.Namespace) -> str:
    """Return what ``--model`` or ``--synthetic`` names as something that an engine loads."""
    if (arguments.model is None) == (arguments.synthetic is None):
        why = "none is given" if arguments.model is None else "--model and --synthetic exclude each other"
        raise UsageError("model", why, "give --synthetic NAME or --model PATH")
    if arguments.model is not None:
        return str(arguments.model)
    from infeng_bench import synthetic

    return str(synthetic.native_directory(arguments.synthetic, arguments.format or "int4-g64"))
