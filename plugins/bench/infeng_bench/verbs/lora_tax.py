"""`infeng bench lora-tax`: the cost of adapters, from the same rows with and without them in turn."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from infeng_bench import options
from infeng_bench.beside import peers
from infeng_bench.engine import alternating
from infeng_bench.engine.session import Session, opened
from infeng_bench.engine.sides import Pair, Side
from infeng_bench.engine.sides import pairs as measure
from infeng_bench.engine.work import KINDS, Work
from infeng_bench.models import adapters
from infeng_bench.reports.results import OURS
from infeng_bench.stats import paired
from infeng_bench.stats.contention import Mark, judged, withheld
from infeng_core.api.kernels import A_FORMATS

NAME = "lora-tax"

PAIRS = 20
CONTEXT = {"decode": 512, "prefill": 1024}
STEPS = 8
SIDES = ("without", "with")


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.positive, 4, "N", "sequences at a time")
    options.add(parser, "--adapters", options.positive, 4, "N", "row i uses adapter i mod N")
    options.add_adapters(parser)
    parser.add_argument("--dora", action="store_true", help="adapters with magnitudes")
    help = f"of A and B: {', '.join(A_FORMATS)} (default: int8)"
    parser.add_argument("--storage", choices=A_FORMATS, metavar="S", help=help)
    parser.add_argument("--phase", choices=sorted(KINDS), default="decode", metavar="P", help="decode or prefill")
    help = "tokens of each sequence (default: decode 512, prefill 1024)"
    parser.add_argument("--context", type=options.positive, metavar="N", help=help)
    options.add(parser, "--steps", options.positive, STEPS, "N", "steps of a turn")
    options.add_pairs(parser, PAIRS, "pairs that count", "pairs")
    help = "no row uses an adapter: an engine that holds adapters against one without any"
    parser.add_argument("--base-only", action="store_true", help=help)
    options.add_seed(parser, "prompts and adapters")
    options.add_engines(parser, "the tax of each, in turn")
    options.add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    context = arguments.context or CONTEXT[arguments.phase]
    steps = {"steps": arguments.steps} if arguments.phase == "decode" else {}
    work = Work(arguments.phase, arguments.rows, context, **steps)
    if arguments.engines:
        return peers().compare_taxes(arguments, work)
    with _sides(arguments) as (session, sides, nbytes):
        session.restart()
        with tqdm(total=arguments.pairs + 1, desc=NAME, unit="pair", leave=False, disable=None) as bar:
            mark = Mark.now()
            found = measure(sides, work, arguments.pairs, arguments.seed, bar.update)
            waits = mark.waits()
        figures = {
            **taxed(found),
            "base_only": arguments.base_only,
            "phase": work.kind,
            "rows": work.rows,
            "context": work.context,
            **steps,
            "adapters": arguments.adapters,
            "rank": arguments.rank,
            "targets": arguments.targets,
            "dora": arguments.dora,
            "storage": session.engine.config.adapters.dtype,
            "adapter_bytes": sum(nbytes),
            "bytes_share": sum(nbytes[: work.rows]) / session.cost.weight_bytes,
            "steal": waits.stolen,
        }
        figures["contention"] = judged(
            {OURS: [waits]}, {"the time without": (1 + figures["lora_tax"], 1 + figures["lora_tax_low"])}
        )
        result = session.record(NAME, figures, work=str(work), seed=arguments.seed)
    return options.deliver(result, arguments, _lines(result))


def taxed(found: Sequence[Pair]) -> dict[str, Any]:
    """Return the figures of pairs (without, with): the tax, its confidence bounds, and both rates."""
    rates = {name: [pair.tokens[i] / pair.seconds[i] for pair in found] for i, name in enumerate(SIDES)}
    return {
        **paired.tax([pair.ratio - 1 for pair in found], rates),
        "pair_count": len(found),
        "pairs": [dict(zip(SIDES, pair.seconds, strict=True)) for pair in found],
    }


@contextlib.contextmanager
def _sides(arguments: argparse.Namespace) -> Iterator[tuple[Session, tuple[Side, Side], list[int]]]:
    """Open one engine, or two with --base-only; yield a session, the sides (without, with) and the adapters' bytes."""
    enabled: dict[str, object] = {"adapters__max_resident": arguments.adapters, "adapters__dtype": arguments.storage}
    with contextlib.ExitStack() as stack:
        if arguments.base_only:
            plain = stack.enter_context(opened(arguments, adapters__max_resident=0))
            session = stack.enter_context(opened(arguments, **enabled))
            names, nbytes = _load(session, arguments)
            yield session, (Side(plain.engine), Side(session.engine)), nbytes
            return
        session = stack.enter_context(opened(arguments, scheduler__use=alternating.NAME, **enabled))
        names, nbytes = _load(session, arguments)
        yield session, (Side(session.engine), Side(session.engine, names)), nbytes


def _load(session: Session, arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Load the adapters; return their names and bytes."""
    engine = session.engine
    names = [f"synthetic-{index}" for index in range(arguments.adapters)]
    for index, name in enumerate(names):
        folder = adapters.peft_directory(
            engine.model.config,
            arguments.rank,
            arguments.targets,
            arguments.seed * arguments.adapters + index,
            dora=arguments.dora,
        )
        engine.adapters.load(name, str(folder), pin=True)
    return names, [adapter.bytes or 0 for adapter in engine.adapters.infos()]


def _lines(result: Mapping[str, Any]) -> list[str]:
    """Return the printed lines."""
    rates = {name: rate["median"] for name, rate in result["tokens_per_s"].items()}
    what = f"{result['adapters']} {'DoRA' if result['dora'] else 'LoRA'} adapters of rank {result['rank']}"
    what += f" on {result['targets']}, {result['storage']}, {result['adapter_bytes'] / 1e6:.1f} MB"
    lines = [f"{result['work']}; {what}{', unused' if result['base_only'] else ''}"]
    if withheld(result):
        return [*lines, f"tokens/s {rates['with']:.1f} with, {rates['without']:.1f} without"]
    return [
        *lines,
        f"tax {result['lora_tax']:+.2%} ({result['lora_tax_low']:+.2%} to {result['lora_tax_high']:+.2%}"
        f" at {result['lora_tax_confidence']:.0%} each), {result['pair_count']} pairs;"
        f" the bytes of the rows' adapters are {result['bytes_share']:.2%} of the weights'",
        f"tokens/s {rates['with']:.1f} with, {rates['without']:.1f} without",
    ]
