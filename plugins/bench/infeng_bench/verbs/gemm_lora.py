"""`infeng bench gemm-lora`: each linear of a model's layers with adapters on its rows, fused, unfused and without."""

from __future__ import annotations

import argparse
import contextlib
import csv
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infeng_bench import options
from infeng_bench.kernels import linears, lora_linears, programs
from infeng_bench.kernels.linears import Linear
from infeng_bench.kernels.lora_linears import WAYS, Adapted, Kernels
from infeng_bench.models.model_shape import model_shape
from infeng_bench.options import Column
from infeng_bench.reports import results
from infeng_bench.stats import paired
from infeng_bench.stats.summary import spread
from infeng_core.api import EngineConfig, ResourceError, UsageError, unknown_key_remedy
from infeng_core.api.formats import ModelConfig, format_lookup
from infeng_core.api.kernels import A_FORMATS

NAME = "gemm-lora"

ROWS, RANKS = "1,4,16", "8,16,32,64"
ROUNDS = 20
ADAPTERS = 4
TABLE = "reports/gemm_lora.csv"
SHOWN = (
    Column("linear", "linear"),
    Column("n x k", "shape"),
    *(Column(name, name) for name in ("rows", "rank", "storage")),
    *(Column(f"{way} us", f"{way}_seconds.median", ".0f", 1e6) for way in WAYS),
    Column("tax", "lora_tax", "+.1%"),
    Column("GMAC/s", "gmacs_per_s", ".1f"),
)
FACTS = ("time", "model", "threads")  # facts of the result in the first columns of the CSV


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.counts, ROWS, "N,N", "batch sizes")
    options.add(parser, "--ranks", options.counts, RANKS, "R,R", "ranks of adapters")
    options.add(parser, "--adapters", options.positive, ADAPTERS, "N", "adapters that share the rows")
    help = f"how adapters are stored, of {', '.join(A_FORMATS)}"
    parser.add_argument("--storage", type=options.words, default="int8", metavar="S,S", help=help)
    linears.add_linear(parser)
    options.add(parser, "--table", str, TABLE, "OUT", "CSV that lines are appended to")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, append and write."""
    config = options.config(arguments)
    threads = options.threads(arguments)
    for storage in arguments.storage:
        if storage not in A_FORMATS:
            raise UsageError(f"--storage {storage}", "unknown", unknown_key_remedy(storage, A_FORMATS))
    with contextlib.closing(_Bench(config, threads, arguments.adapters)) as bench:
        shape = model_shape(arguments, config, bench.lookup)
        every = linears.linears(shape, bench.lookup)[:-1]  # without the head
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
    shown = options.columns(options.table(SHOWN, linears.shaped(measured)))
    return options.deliver(result, arguments, [*shown, f"appended to {arguments.table}"])


def append(path: str | Path, result: Mapping[str, Any]) -> None:
    """Append a line per measurement to a CSV; the file and its folder are made if missing.

    Raises UsageError if the file has other columns, ResourceError if it cannot be written.
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
    """The choices and workers of a run."""

    footprint = 0

    def __init__(self, config: EngineConfig, threads: int, adapters: int) -> None:
        self._choices = {op: programs.Choices(config, op, []) for op in ("linear", "shrink", "epilogue")}
        self.lookup = format_lookup(self._choices["linear"].plugins)
        self._pool = programs.pool(config, threads)
        self._threads = threads
        self._adapters = adapters

    def close(self) -> None:
        """End the processes that tried libraries."""
        for choices in self._choices.values():
            choices.close()

    def measure(
        self, config: ModelConfig, linear: Linear, rows: int, rank: int, storage: str, rounds: int
    ) -> dict[str, Any]:
        """Return the figures of one linear, measured in all three WAYS in turn."""
        adapted = Adapted(lora_linears.parts_of(config, linear), rank, self._adapters, storage)
        ways = dict(zip(WAYS, self._kernels(linear, adapted, rows), strict=True))
        copies = linears.copies_for(linear, rows, self.footprint)
        ours: list[programs.KernelProgram] = []
        for kernels in ways.values():
            like, reference = ours[0].op if ours else None, self._choices["linear"].reference
            ours.append(lora_linears.subject(linear, adapted, kernels, copies, rows, self._pool, reference, like))
        times = dict(zip(WAYS, programs.readings(ours, rounds), strict=True))
        taxes = {way: [ratio - 1 for ratio in paired.ratios(times[way], times["base"])] for way in WAYS[1:]}
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
        shrink = self._of(
            "shrink", rows, weight=adapted.a_format, act=adapted.act, n=stacked, k=linear.k, **adapted.needs
        )
        yield Kernels(plain)
        yield Kernels(self._of("linear", rows, **product, epilogues=["lora"]), shrink)
        yield Kernels(plain, shrink, self._of("epilogue", rows, n=columns, k=columns, epilogues=["lora"]))

    def _of(self, op: str, rows: int, **fields: Any) -> programs.Choice:
        return self._choices[op].of(rows, workers=self._threads, **fields)[0]
