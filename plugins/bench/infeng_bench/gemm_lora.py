"""`infeng bench gemm-lora`: each linear of a model's layers with adapters on its rows: fused, unfused and without."""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench import linears, loralinears, options, pairs, results, subjects
from infeng_bench.linears import Linear
from infeng_bench.loralinears import WAYS, Adapted, Kernels
from infeng_bench.modelshape import model_shape
from infeng_bench.spread import spread
from infeng_core.api import A_FORMATS, EngineConfig, ModelConfig, ResourceError, UsageError, unknown_key_remedy

NAME = "gemm-lora"
HELP = "measure linears with adapters: fused, unfused and without"

ROWS, RANKS = "1,4,16", "8,16,32,64"
ROUNDS = 20
ADAPTERS = 4
TABLE = "reports/gemm_lora.csv"
FACTS = ("time", "model", "threads")
"""Of the whole result: the first columns of the table."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rows", type=options.counts, default=ROWS, metavar="N,N", help=f"batch sizes ({ROWS})")
    parser.add_argument("--ranks", type=options.counts, default=RANKS, metavar="R,R", help=f"of adapters ({RANKS})")
    parser.add_argument(
        "--adapters", type=options.positive, default=ADAPTERS, metavar="N", help=f"that share the rows ({ADAPTERS})"
    )
    parser.add_argument(
        "--storage", type=options.words, default="int8", metavar="S,S", help=f"of {', '.join(A_FORMATS)} (int8)"
    )
    parser.add_argument(
        "--linear", type=options.words, default=[], metavar="NAME,NAME", help="only these, such as down_proj"
    )
    parser.add_argument("--table", default=TABLE, metavar="OUT", help=f"CSV that lines are appended to ({TABLE})")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, append and write."""
    config = options.config(arguments)
    threads = options.threads(arguments)
    for storage in arguments.storage:
        if storage not in A_FORMATS:
            raise UsageError(f"--storage {storage}", "unknown", unknown_key_remedy(storage, A_FORMATS))
    with _Bench(config, threads, arguments.adapters) as bench:
        shape = model_shape(arguments, config, bench.lookup)
        every = linears.linears(shape, bench.lookup)[:-1]  # the head is no target
        wanted = linears.named(every, arguments.linear)
        bench.footprint = sum(linear.nbytes * linear.count for linear in every)
        turns = [(linear, rows) for linear in wanted for rows in arguments.rows]
        measured = [
            line
            for linear, rows in options.progress(turns, NAME)
            for storage in arguments.storage
            for rank in arguments.ranks
            for line in [bench.measure(shape.config, linear, rows, rank, storage, arguments.rounds)]
        ]
    result = results.record(
        NAME,
        {"measurements": measured},
        model=shape.name,
        format=shape.format,
        threads=threads,
        seed=arguments.seed,
        rounds=arguments.rounds,
        kernels=sorted({kernel for line in measured for kernel in line["kernels"].values()}),
    )
    append(arguments.table, result)
    options.deliver(result, arguments, [*options.columns(_table(measured)), f"appended to {arguments.table}"])
    return 0


def append(path: str | Path, result: Mapping[str, Any]) -> None:
    """Add a line for each measurement to a CSV, made with its folder if it is not there.

    Raises UsageError where the file has other columns, ResourceError where it cannot be written.
    """
    target = Path(path)
    facts = {name: result[name] for name in FACTS}
    facts |= {"cpu": result["machine"]["cpu"], "version": result["versions"]["infeng-core"]}
    lines = [facts | dict(results.flat(line)) for line in result["measurements"]]
    header = list(lines[0])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            known = next(csv.reader(file), None)
            if known not in (None, header):
                raise UsageError(str(target), "it is a table with other columns", "name another with --table")
            writer = csv.DictWriter(file, header, lineterminator="\n")
            if known is None:
                writer.writeheader()
            writer.writerows(lines)
    except OSError as error:
        raise ResourceError(str(target), f"cannot be written ({error.strerror})", "choose another file") from error


class _Bench:
    """What all measurements of a run share."""

    footprint = 0

    def __init__(self, config: EngineConfig, threads: int, adapters: int) -> None:
        self._choices = {op: subjects.Choices(config, op, []) for op in ("linear", "shrink", "epilogue")}
        self.lookup = self._choices["linear"].plugins.quant_format
        self._pool = subjects.pool(config, threads)
        self._threads = threads
        self._adapters = adapters

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *reason: object) -> None:
        for choices in self._choices.values():
            choices.close()

    def measure(
        self, config: ModelConfig, linear: Linear, rows: int, rank: int, storage: str, rounds: int
    ) -> dict[str, Any]:
        """Return the figures of one linear, all three ways in turn."""
        adapted = Adapted(loralinears.parts_of(config, linear), rank, self._adapters, storage)
        ways = dict(zip(WAYS, self._kernels(linear, adapted, rows), strict=True))
        copies = linears.copies_for(linear, rows, self.footprint)
        ours: list[subjects.Ours] = []
        for kernels in ways.values():
            like, reference = ours[0].op if ours else None, self._choices["linear"].reference
            ours.append(loralinears.subject(linear, adapted, kernels, copies, rows, self._pool, reference, like))
        times = dict(zip(WAYS, subjects.readings(ours, rounds), strict=True))
        taxes = {way: [ratio - 1 for ratio in pairs.ratios(times[way], times["base"])] for way in WAYS[1:]}
        used = {"linear": ways["fused"].linear, "shrink": ways["unfused"].shrink, "epilogue": ways["unfused"].epilogue}
        return {
            "linear": linear.name,
            "n": linear.n,
            "k": linear.k,
            "format": linear.quant.name,
            "rows": rows,
            "adapters": min(rows, self._adapters),
            "rank": rank,
            "storage": storage,
            "copies": copies,
            **{f"{way}_seconds": spread(seconds) for way, seconds in times.items()},
            "lora_tax": statistics.median(taxes["fused"]),
            "unfused_tax": statistics.median(taxes["unfused"]),
            "gmacs_per_s": rows * linear.n * linear.k / spread(times["fused"])["median"] / 1e9,
            "kernels": {op: choice.name for op, choice in used.items() if choice is not None},
        }

    def _kernels(self, linear: Linear, adapted: Adapted, rows: int) -> Iterator[Kernels]:
        quant, columns = linear.quant, linear.panels * linears.PANEL
        product = {"weight": quant.stored, "act": quant.activation, "n": columns, "k": linear.k}
        plain = self._of("linear", rows, **product)
        stacked = -(-adapted.stacked // linears.PANEL) * linears.PANEL
        shrink = self._of("shrink", rows, weight=adapted.a_format, act=adapted.act, n=stacked, k=linear.k)
        yield Kernels(plain)
        yield Kernels(self._of("linear", rows, **product, epilogues=["lora"]), shrink)
        yield Kernels(plain, shrink, self._of("epilogue", rows, n=columns, k=columns, epilogues=["lora"]))

    def _of(self, op: str, rows: int, **fields: Any) -> subjects.Choice:
        return self._choices[op].of(rows, workers=self._threads, **fields)[0]


def _table(measured: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    yield ["linear", "n x k", "rows", "rank", "storage", "base us", "fused us", "unfused us", "tax", "GMAC/s"]
    for line in measured:
        yield [
            line["linear"],
            f"{line['n']}x{line['k']}",
            *(str(line[name]) for name in ("rows", "rank", "storage")),
            *(f"{line[f'{way}_seconds']['median'] * 1e6:.0f}" for way in WAYS),
            f"{line['lora_tax']:+.1%}",
            f"{line['gmacs_per_s']:.1f}",
        ]
