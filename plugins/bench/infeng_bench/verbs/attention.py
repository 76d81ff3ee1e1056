"""`infeng bench attention`: the attention op over the paged cache, in decode and in prefill."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.engine.work import Work
from infeng_bench.kernels import attention_ops, oracles
from infeng_bench.kernels.programs import Choice
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.models.model_shape import model_shape
from infeng_bench.options import Column
from infeng_bench.verbs import single_op
from infeng_core.api.formats import ModelConfig

NAME = "attention"

WORKS = (
    "decode:rows=1,context=1024",
    "decode:rows=4,context=512",
    "decode:rows=16,context=512",
    "prefill:rows=1,context=1024",
)
ROUNDS = 10
TABLE = (
    Column("work", "work"),
    Column("cache", "kv_dtype"),
    Column("kernel", "kernel"),
    Column("us a layer", "seconds.median", ".0f", 1e6),
    *single_op.RATES,
)


def configure(parser: argparse.ArgumentParser) -> None:
    help = f"what to do, repeats ({' '.join(WORKS)}); decode: one row of each sequence; prefill: whole prompts"
    parser.add_argument("--work", action="append", type=Work.parse, metavar="WORK", help=help)
    options.add(parser, "--kv", options.words, None, "T,T", "how keys and values are stored (kv_cache.dtype)")
    single_op.add_arguments(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    threads = options.threads(arguments)
    works = arguments.work or [Work.parse(text) for text in WORKS]
    formats = arguments.kv or [options.config(arguments).kv_cache.dtype]
    configs = [options.config(arguments, kv_cache__dtype=kv) for kv in formats]  # raises before any measurement
    measured: list[dict[str, Any]] = []
    ceilings = options.roofline(arguments, threads)
    with oracles.started(arguments, threads) as others:
        for config in configs:
            with contextlib.closing(attention_ops.AttentionOps(config, arguments.kernel, threads)) as bench:
                shape = model_shape(arguments, config, bench.lookup)
                for work in options.progress(works, f"{config.kv_cache.dtype} cache"):
                    # An oracle has its own cache format, so it is measured only beside our first format.
                    asked = others if config is configs[0] else []
                    measured += _measure(bench, shape.config, work, asked, ceilings, arguments.rounds)
    facts = {"model": shape.name, "threads": threads}
    return single_op.deliver(NAME, arguments, measured, TABLE, ceilings=ceilings, others=others, **facts)


def _measure(
    bench: attention_ops.AttentionOps,
    shape: ModelConfig,
    work: Work,
    others: list[oracles.Oracle],
    ceilings: Roofline | None,
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Yield a measurement for each kernel and oracle, taken in turn."""
    kernels, ours = bench.subjects(shape, work)
    theirs = [subject for oracle in others for subject in oracle.attention(**attention_ops.oracle_size(shape, work))]
    macs, nbytes = attention_ops.macs(shape, work), attention_ops.kv_bytes(shape, work, bench.kv)
    # Half of the multiplications are float.
    found = single_op.Measured(kernels, ours, theirs, macs, nbytes, is_int8=False)
    for one, shown in found.figures(rounds, bench.threads, ceilings, others):
        kv = bench.kv if isinstance(one, Choice) else one.format
        yield {"work": _name(work), "kv_dtype": kv, **shown}


def _name(work: Work) -> str:
    """Return the work's text without its number of steps, since one step is measured."""
    return str(Work(work.kind, work.rows, work.context))
