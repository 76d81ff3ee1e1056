"""The linears of a model: their shapes, and programs on random weights of these shapes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_inspect.api import OneOp

from infeng_bench import options
from infeng_bench.kernels.programs import Choice, KernelProgram
from infeng_bench.models.model_shape import ModelShape
from infeng_core.api import UsageError, unknown_key_remedy
from infeng_core.api import kernels as kernels_api
from infeng_core.api.formats import FormatLookup, QuantFormat, layout

PANEL = 16
MAC_BUDGET = 1 << 35  # multiply-adds of one reading, some tens of milliseconds


@dataclass(frozen=True)
class Linear:
    """A weight of ``n`` outputs by ``k`` inputs, ``count`` times in the model."""

    name: str  # "layers.*.down_proj"
    n: int
    k: int
    panels: int
    quant: QuantFormat
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of one."""
        return self.panels * self.quant.panel_bytes(self.k)


def linears(shape: ModelShape, lookup: FormatLookup) -> list[Linear]:
    """Return the linears of a model in the order in which a step reads them; the head is last."""
    config = shape.config
    found: dict[str, Linear] = {}
    for tensor in layout(config).tensors:
        if tensor.name == "embed" and not config.tie_embeddings:
            continue
        name = re.sub(r"\.\d+\.", ".*.", tensor.name)
        same = found.get(name)
        count = same.count + 1 if same else 1
        found[name] = Linear(name, tensor.n, tensor.k, tensor.panels, lookup(shape.formats[tensor.name]), count)
    if "embed" in found:
        found["embed"] = found.pop("embed")  # the head comes last
    return list(found.values())


def add_linear(parser: argparse.ArgumentParser) -> None:
    """Add ``--linear``."""
    options.add(parser, "--linear", options.words, [], "NAME,NAME", "only these, such as down_proj")


def shaped(measured: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield measurements with their weight's shape as a column for people, such as 4096x4096."""
    for line in measured:
        yield {**line, "shape": f"{line['n']}x{line['k']}"} if "n" in line else {**line}


def named(every: list[Linear], names: Sequence[str]) -> list[Linear]:
    """Return the linears that the user named, in full or by the last part; all if none is named."""
    known = {linear.name: linear for linear in every} | {linear.name.rsplit(".", 1)[-1]: linear for linear in every}
    for name in names:
        if name not in known:
            short = [linear.name.rsplit(".", 1)[-1] for linear in every]
            raise UsageError(f"--linear {name}", "the model has no such linear", unknown_key_remedy(name, short))
    return [known[name] for name in names] or every


def copies_for(linear: Linear, rows: int, footprint: int) -> int:
    """Return how many copies of a weight one reading goes through.

    The copies are as large as the whole model, so that a weight has left the caches before it is read again; large
    batches, which are bound by arithmetic, get fewer.
    """
    affordable = MAC_BUDGET // (rows * linear.n * linear.k)
    return max(1, min(-(-footprint // linear.nbytes), affordable))


def subject(
    linear: Linear,
    choice: Choice,
    copies: int,
    rows: int,
    pool: kernels_api.Pool,
    reference: kernels_api.Library,
    like: OneOp | None,
    *epilogues: str,
    **more: Any,
) -> KernelProgram:
    """Return a program of ``copies`` linears on ``rows`` random rows. like: an op whose weights it shares.

    more: further arguments of ``OneOp``.
    """
    op = OneOp(
        case(linear, rows, *epilogues),
        choice.kernel,
        reference,
        [[(rows, 0)]],
        pool=pool,
        calls=copies,
        copies=copies,
        like=like,
        **more,
    )
    return KernelProgram(choice.name, op)


def case(linear: Linear, rows: int, *epilogues: str) -> dict[str, Any]:
    """Return the fields of a linear's kernel problem."""
    fields = {"op": "linear", "rows": [1, rows], "n": linear.panels * PANEL, "k": linear.k}
    return {**fields, "weight": linear.quant.stored, "act": linear.quant.activation, "epilogues": list(epilogues)}
