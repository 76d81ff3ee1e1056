"""Options that verbs share, and the output of results."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tqdm import tqdm

from infeng_bench import beside
from infeng_bench.models import shapes
from infeng_bench.reports import pages, results
from infeng_bench.reports.results import OURS
from infeng_bench.stats import contention, gates
from infeng_core.api import EngineConfig, UsageError, add_config_options, config_from
from infeng_core.api.kernels import detect

if TYPE_CHECKING:
    from infeng_bench.engine.work import Work
    from infeng_bench.kernels.roofline import Roofline

T = TypeVar("T")


class Arguments(Protocol):
    """A parser, or a group of one."""

    @property
    def add_argument(self) -> Callable[..., argparse.Action]:
        """Add an argument."""


UNITS = {"": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
PROMPT_ROWS = 256  # of prompts in a step, at least
BLOCK, CACHED = 16, 8  # positions of a block; sequences of full length in the cache by default
TIMEOUT = 600.0  # seconds
REAL = "a real model: directory or hub name"
MODEL = "model_or_shape"  # name of the positional MODEL in the namespace


def add(parser: Arguments, name: str, read: Callable[[str], Any], default: Any, metavar: str, help: str) -> None:
    """Add an option with a value. read: returns the value of a text, or raises ArgumentTypeError."""
    parser.add_argument(name, type=read, default=default, metavar=metavar, help=help)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    help = "worker threads (default: usable cores)"
    parser.add_argument("-t", "--threads", "--n-threads", type=positive, metavar="N", help=help)


def add_model(parser: argparse.ArgumentParser, what: str = REAL) -> None:
    """Add the options of the model, threads and the engine's configuration. what: the help of ``--model``."""
    group = parser.add_argument_group("model")
    help = "a model as --model takes it, or what --synthetic takes"
    group.add_argument(MODEL, metavar="MODEL", nargs="?", help=help)
    help = "random weights of known shapes, such as tinyllama-1.1b, or a config.json"
    group.add_argument("--synthetic", metavar="NAME", help=help)
    group.add_argument("--model", "--base-model", metavar="PATH", help=what)
    add(group, "--format", str, None, "F", "weight format, such as int4-g64")
    parser.set_defaults(last_positional=MODEL)  # may follow options
    add_threads(parser)
    add_config_options(parser)


def add_run(parser: argparse.ArgumentParser, what: str = REAL, *report: str) -> None:
    """Add the options of the model and of results; arguments as in ``add_model`` and ``add_output``."""
    if parser.get_default("roofline") is None:
        parser.set_defaults(roofline="none")
    add_model(parser, what)
    add_output(parser, *report)


def settle_model(arguments: argparse.Namespace) -> None:
    """Turn the positional MODEL into ``--model`` or, for the name of a known shape or a config.json, ``--synthetic``.

    A path that exists takes precedence over a name. Raises UsageError if one of the options is given too.
    """
    given = getattr(arguments, MODEL, None)
    if given is None:
        return
    if getattr(arguments, "model", None) or arguments.synthetic:
        raise UsageError("model", f"{given!r} is given beside --model or --synthetic", "name one model")
    path, (name, _) = Path(given).expanduser(), shapes.split(given)
    if not hasattr(arguments, "model"):
        arguments.synthetic = words(given)
    elif name.endswith(".json") or (not path.exists() and name in {*shapes.SHAPES, *shapes.published()}):
        arguments.synthetic = given
    else:
        arguments.model = given


def add_seed(parser: Arguments, what: str = "prompts and values") -> None:
    """Add ``--seed``."""
    add(parser, "--seed", natural, 0, "S", f"seed of {what}")


def add_pairs(parser: Arguments, default: int, what: str = "readings of each", dest: str = "rounds") -> None:
    """Add ``--pairs``, the number of measurements, with its synonyms."""
    names = ("--pairs", "--rounds", "--iters")
    parser.add_argument(*names, dest=dest, type=positive, default=default, metavar="N", help=what)


def add_measurement(parser: argparse.ArgumentParser, rounds: int, *, has_roofline: bool = False) -> None:
    """Add ``--pairs``, ``--seed``, the model and the results. has_roofline: add ``--roofline`` too."""
    add_pairs(parser, rounds)
    add_seed(parser)
    if has_roofline:
        add_roofline(parser)
    add_run(parser)


def add_engines(parser: Arguments, what: str, default: str | None = None, *, required: bool = False) -> None:
    """Add ``--engines``, ``--timeout`` and ``--option``, for measurements of several engines in turn."""
    help = f"of {', '.join((OURS, *beside.names()))}: {what}"
    parser.add_argument("--engines", default=default, required=required, metavar="A,B", help=help)
    add(parser, "--timeout", seconds, TIMEOUT, "S", "seconds of one answer")
    help = "a setting of a peer; repeats"
    parser.add_argument("--option", action="append", default=[], metavar="PEER.KEY=VALUE", help=help)


def add_adapters(parser: Arguments, rank: Callable[[str], Any] | None = None) -> None:
    """Add the rank and the targets of random adapters. rank: the type of ``--rank``."""
    add(parser, "--rank", rank or positive, "16", "R", "rank of random adapters")
    add(parser, "--targets", str, "all", "T", "what adapters change: all, qv, or modules such as q_proj,down_proj")


def add_roofline(parser: argparse.ArgumentParser) -> None:
    """Add ``--roofline``."""
    help = "what figures are compared with: measure, none, or a result of infeng bench roofline"
    parser.add_argument("--roofline", default="measure", metavar="R", help=help)


def add_output(parser: argparse.ArgumentParser, *report: str) -> None:
    """Add ``--json``, ``--csv`` and ``--report``. report: synonyms of the last."""
    group = parser.add_argument_group("results")
    add(group, "--json", str, None, "OUT", "write the result as JSON; - is standard output")
    add(group, "--csv", str, None, "OUT", "write a table; - is standard output")
    help = "write a page of tables and charts"
    group.add_argument("-o", "--report", *report, dest="report", metavar="OUT", help=help)
    help = "exit with status 1 unless the result keeps this limit, such as 'p99_ttft_ms<=500'; repeats"
    group.add_argument("--gate", action="append", default=[], metavar="F<=N", help=help)


def config(arguments: argparse.Namespace, **more: object) -> EngineConfig:
    """Return the engine's configuration from the options; ``more`` as in ``config_from``.

    By default the prefix cache is off and steps have no time bound, so that every measurement does all its work;
    measurements of traffic restore the engine's defaults (``kv_cache__prefix=None, scheduler__step_ms=None``).
    """
    steady: dict[str, object] = {"kv_cache__prefix": False, "scheduler__step_ms": 0}
    return config_from(
        arguments, model__format=arguments.format, threads__count=arguments.threads, **{**steady, **more}
    )


def threads(arguments: argparse.Namespace) -> int:
    """Return the number of ``--threads``, or one per core that this process may use, within its quota."""
    return detect().place(replace(EngineConfig().threads, count=arguments.threads or "auto")).workers


def make_long_enough(arguments: argparse.Namespace, works: Iterable[Work]) -> None:
    """Give the random weights of ``--synthetic`` as many positions as the longest of ``works`` needs.

    The cache has room for CACHED such sequences by default, so many rows need more positions too.
    """
    if not arguments.synthetic:
        return
    for work in works:
        prompt_rows = max(PROMPT_ROWS - work.rows, 1)  # of a step in which all other rows decode
        waiting = work.rows * work.context // prompt_rows + 1 if work.rows > 1 else 0  # steps of begun rows meanwhile
        each = work.positions + waiting
        needed = max(each, -(-work.rows * (each + BLOCK) // CACHED))
        arguments.synthetic = shapes.lengthened(arguments.synthetic, needed)


def model_name(arguments: argparse.Namespace) -> str:
    """Return the model's name in results; raises UsageError unless exactly one model is given."""
    if (arguments.model is None) == (arguments.synthetic is None):
        why = "none is given" if arguments.model is None else "--model and --synthetic exclude each other"
        raise UsageError("model", why, "give --synthetic NAME or --model PATH, or MODEL alone")
    if arguments.model is None:
        return f"synthetic:{Path(arguments.synthetic).name}"
    path = Path(arguments.model)
    return path.resolve().name if path.is_dir() else str(arguments.model)


def model_directory(arguments: argparse.Namespace, format: str) -> str:
    """Return the model that an engine loads: ``--model``, or the directory of the random weights."""
    model_name(arguments)
    if arguments.model is not None:
        return str(arguments.model)
    from infeng_bench.models import synthetic

    return str(synthetic.native_directory(arguments.synthetic, format))


def roofline(arguments: argparse.Namespace, threads: int) -> Roofline | None:
    """Return the ceilings of ``--roofline``: measured now, read from a file, or None."""
    from infeng_bench.kernels import roofline as ceilings

    if arguments.roofline == "none":
        return None
    if arguments.roofline == "measure":
        return ceilings.measure(threads)
    return ceilings.from_result(arguments.roofline, threads)


def deliver(result: Mapping[str, Any], arguments: argparse.Namespace, lines: Iterable[str]) -> int:
    """Write the files of ``--json``, ``--csv`` and ``--report``; print ``lines``, on stderr if stdout has a result.

    Return the exit status: 1 if the result misses one of ``--gate``.
    """
    outcomes = gates.judged(result, gates.parse(getattr(arguments, "gate", ())))
    if outcomes:
        result = {**result, "gates": outcomes}
    taken = "-" in (arguments.json, arguments.csv)
    shown = [*lines]
    shown += contention.warnings([result, *result.get("measurements", ())], said="\n".join(shown))
    for line in shown:
        print(line.rstrip(), file=sys.stderr if taken else sys.stdout)
    if arguments.json:
        results.write(arguments.json, result)
    if arguments.csv:
        results.write_csv(arguments.csv, result)
    if arguments.report:
        results.write_text(arguments.report, pages.pages().page([(str(result["kind"]), result)]))
        print(f"{arguments.report}: the page", file=sys.stderr)
    for one in outcomes:
        print(gates.sentence(one), file=sys.stderr)
    return 0 if all(one["passed"] for one in outcomes) else 1


def keep(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Write the JSON of an unfinished measurement, so that an interruption loses little."""
    if arguments.json not in (None, "-"):
        results.write(arguments.json, result)


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """Iterate over ``items`` with a bar on standard error where that is a terminal."""
    bar: Iterable[T] = tqdm(items, desc=what, leave=False, disable=None)
    return bar


class Column(NamedTuple):
    """A column of a printed table."""

    heading: str
    key: str  # of a figure; dots lead into nested objects
    form: str = ""  # format specification
    factor: float = 1.0  # from the figure's unit to the table's


def table(
    shown: Sequence[Column], lines: Iterable[Mapping[str, Any]], hidden: Collection[str] = ()
) -> Iterator[list[str]]:
    """Yield the headings and a row per line; missing figures and figures in ``hidden`` are left empty."""
    yield [column.heading for column in shown]
    for line in lines:
        figures = {key: value for key, value in results.flat(line) if key not in hidden and value is not None}
        yield [cell(figures[one.key], one) if one.key in figures else "" for one in shown]


def cell(value: Any, column: Column) -> str:
    """Return a figure in the column's unit and format."""
    return f"{value if column.factor == 1 else value * column.factor:{column.form}}"


def columns(table: Iterable[Iterable[object]]) -> list[str]:
    """Return a table's rows as lines: the first column flush left, the others flush right."""
    rows = [[str(cell) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    return [
        "  ".join(cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for i, cell in enumerate(row)) for row in rows
    ]


def listed(shown: Mapping[str, tuple[str, float]], sides: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each figure that a side has, and a column for each side.

    shown: by figure its label and the factor from the result's unit to the table's.
    """
    rows = [
        [label, *(_short(one.get(name), factor) for one in sides.values())]
        for name, (label, factor) in shown.items()
        if any(one.get(name) is not None for one in sides.values())
    ]
    return columns([["", *sides], *rows] if len(sides) > 1 else rows)


def _short(value: float | None, factor: float) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and factor == 1:
        return f"{value}"
    return f"{value * factor:,.0f}" if abs(value * factor) >= 1000 else f"{value * factor:.3g}"


def number(text: str, wanted: str, most: float = math.inf) -> float:
    """Read a number above 0 and at most ``most``; raises ArgumentTypeError that says ``wanted``."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {wanted}")
    return found


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, 0)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    return number(text, "seconds above 0", sys.float_info.max)


def rate(text: str) -> float:
    """Read a number of requests a second above 0, or inf."""
    return number(text, "requests a second above 0, or inf")


def up_to(most: float) -> Callable[[str], float]:
    """Return what reads a number from 0 to ``most``."""

    def read(text: str) -> float:
        return 0.0 if text in ("0", "0.0") else number(text, f"0 to {most:g}", most)

    return read


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
