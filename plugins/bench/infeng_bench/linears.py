"""The linears of a model: their shapes, and weights like theirs to compute with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infeng_bench.modelshape import ModelShape
from infeng_bench.subjects import Choice, OneOp, plain_batch
from infeng_core import api
from infeng_core.api import FormatLookup, QuantFormat, UsageError, layout, unknown_key_remedy

PANEL = 16
MODEL_PANELS = 4  # packed for real; the rest of a weight repeats them, for values do not matter
MAC_BUDGET = 1 << 35  # of one reading of large batches: some tens of milliseconds


@dataclass(frozen=True)
class Linear:
    """Weights of one shape: ``count`` of them in the model, each ``n`` outputs by ``k`` inputs."""

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
    """Return the linears of a model in the order in which a step reads them; the head is the last."""
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


def named(every: list[Linear], names: Sequence[str]) -> list[Linear]:
    """Return the linears that the user named, by their last part or in full; all where none is named."""
    known = {linear.name: linear for linear in every} | {linear.name.rsplit(".", 1)[-1]: linear for linear in every}
    for name in names:
        if name not in known:
            short = [linear.name.rsplit(".", 1)[-1] for linear in every]
            raise UsageError(f"--linear {name}", "the model has no such linear", unknown_key_remedy(name, short))
    return [known[name] for name in names] or every


def copies_for(linear: Linear, rows: int, footprint: int) -> int:
    """Return how many weights one reading goes through.

    As many as the whole model is large, so that a weight has left the caches when it is read again; fewer for large
    batches, which compute rather than read.
    """
    affordable = MAC_BUDGET // (rows * linear.n * linear.k)
    return max(1, min(-(-footprint // linear.nbytes), affordable))


def weights(linear: Linear, copies: int) -> Callable[[int], api.Weight]:
    """Return ``copies`` weights side by side in memory with huge pages, by index."""
    sample = min(linear.panels, MODEL_PANELS)
    rng = np.random.default_rng(0)
    source = (rng.standard_normal((sample * PANEL, linear.k), np.float32) * np.float32(0.02)).astype(np.float32)
    panel_bytes = linear.quant.panel_bytes(linear.k)
    model = api.Arena(sample * panel_bytes, huge_pages=False)
    linear.quant.pack(source, _bytes(model))
    packed = _bytes(model)[: sample * panel_bytes].reshape(sample, panel_bytes)
    arena = api.Arena(copies * linear.nbytes)
    panels = _bytes(arena)[: copies * linear.nbytes].reshape(-1, panel_bytes)
    for begin in range(0, len(panels), sample):
        part = panels[begin : begin + sample]
        part[:] = packed[: len(part)]

    def weight(index: int) -> api.Weight:
        offset = index * linear.nbytes
        return api.Weight(linear.quant.name, linear.n, linear.k, linear.panels, panel_bytes, arena, offset)

    return weight


def subject(
    linear: Linear, choice: Choice, weight: Callable[[int], api.Weight], copies: int, rows: int, pool: api.Pool
) -> OneOp:
    """Return a program of ``copies`` linears on ``rows`` random rows."""
    program = api.Program(pool, max_rows=rows, max_samples=1, max_segments=1, context=max(rows, PANEL))
    x = program.buffer(linear.k) if linear.quant.is_float else program.activation(linear.k)
    out = program.buffer(linear.panels * PANEL)
    for index in range(copies):
        program.linear([(rows, choice.kernel)], weight(index), x, out)
    program.finish()
    rng = np.random.default_rng(1)
    if linear.quant.is_float:
        program.view(x)[:] = rng.standard_normal((rows, linear.k), np.float32)
    else:
        q, scale, total = program.view_activation(x)
        q[:, : linear.k] = rng.integers(-127, 128, (rows, linear.k))
        scale[:] = 0.01
        total[:] = q.reshape(rows, -1, q.shape[1] // scale.shape[1]).sum(axis=2, dtype=np.int32)
    return OneOp(choice.name, program, copies, [plain_batch(rows)])


def _bytes(arena: api.Arena) -> NDArray[np.uint8]:
    return np.asarray(memoryview(arena)).view(np.uint8)
