"""A linear with adapters on its rows as a program of its own: fused, unfused or without adapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infeng_bench.linears import PANEL, Linear
from infeng_bench.subjects import AdapterRange, Choice, OneOp, plain_batch
from infeng_core import api
from infeng_core.api import ModelConfig, Part, layout

WAYS = ("base", "fused", "unfused")
"""The linear alone; shrink, and the linear expands in its epilogue; shrink, the linear, and an op of its own."""

A_FORMATS = {"int8": "int8-row", "bf16": "bf16", "f32": "f32"}
"""How A is packed, by the storage of adapters."""


@dataclass(frozen=True)
class Adapted:
    """Adapters on the rows of a linear: each has ``rank`` for every projection."""

    parts: Sequence[Part]
    rank: int
    adapters: int
    storage: str

    @property
    def stacked(self) -> int:
        """Rank rows of all projections: those of one A."""
        return self.rank * len(self.parts)

    @property
    def a_format(self) -> str:
        """The format in which A is packed."""
        return A_FORMATS[self.storage]

    @property
    def act(self) -> str:
        """What shrink reads."""
        return "int8-g64" if self.storage == "int8" else "f32"


@dataclass(frozen=True)
class Kernels:
    """Those that a way needs: shrink except for the base, epilogue for the unfused way."""

    linear: Choice
    shrink: Choice | None = None
    epilogue: Choice | None = None


def parts_of(config: ModelConfig, linear: Linear) -> tuple[Part, ...]:
    """Return the projections of one of a model's linears."""
    return next(spec.parts for spec in layout(config).tensors if re.sub(r"\.\d+\.", ".*.", spec.name) == linear.name)


def subject(
    linear: Linear,
    adapted: Adapted,
    kernels: Kernels,
    weight: Callable[[int], api.Weight],
    copies: int,
    rows: int,
    pool: api.Pool,
) -> OneOp:
    """Return a program of ``copies`` linears on ``rows`` random rows; every copy has adapters of its own in memory."""
    program = api.Program(pool, max_rows=rows, max_samples=1, max_segments=1, context=max(rows, PANEL))
    columns = linear.panels * PANEL
    if kernels.shrink is not None:
        program.open_adapters(adapted.storage, columns=-(-adapted.stacked // PANEL) * PANEL, max_ranges=rows)
    acts = {linear.quant.activation, *([adapted.act] if kernels.shrink else [])}
    inputs = {act: program.buffer(linear.k) if act == "f32" else program.activation(linear.k) for act in acts}
    out = program.buffer(columns)
    for index in range(copies):
        steps = []
        if kernels.shrink is not None:
            bound = [(rows, kernels.shrink.kernel)]
            slot = program.shrink(bound, f"copy{index}", inputs[adapted.act], k=linear.k, panels=linear.panels)
            steps = [api.Epilogue.lora(slot)]
        fused = steps if kernels.epilogue is None else []
        program.linear([(rows, kernels.linear.kernel)], weight(index), inputs[linear.quant.activation], out, fused)
        if kernels.epilogue is not None:
            program.epilogue([(rows, kernels.epilogue.kernel)], out, columns, out, steps)
    program.finish()
    _fill(program, inputs, linear.k)
    ranges = _ranges(program, linear, adapted, copies, rows) if kernels.shrink else []
    return OneOp(kernels.linear.name, program, copies, [plain_batch(rows)], ranges)


def _fill(program: api.Program, inputs: dict[str, int], k: int) -> None:
    rng = np.random.default_rng(1)
    for act, value in inputs.items():
        if act == "f32":
            view = program.view(value)
            view[:] = rng.standard_normal(view.shape, np.float32)
        else:
            q, scale, total = program.view_activation(value)
            q[:, :k] = rng.integers(-127, 128, (len(q), k))
            scale[:] = 0.01
            total[:] = q.reshape(len(q), -1, q.shape[1] // scale.shape[1]).sum(axis=2, dtype=np.int32)


def _ranges(program: api.Program, linear: Linear, adapted: Adapted, copies: int, rows: int) -> list[AdapterRange]:
    """Return which rows use which adapter: consecutive ones, as a scheduler puts them."""
    count = min(adapted.adapters, rows)
    tensor = _tensor(linear, adapted)
    tensors = [(f"copy{index}", *tensor) for index in range(copies)]
    made = [program.adapter(adapted.storage, tensors) for _ in range(count)]
    return [(rows * i // count, rows * (i + 1) // count, adapter, 1.0) for i, adapter in enumerate(made)]


def _tensor(
    linear: Linear, adapted: Adapted
) -> tuple[int, NDArray[np.uint8], NDArray[np.float32], list[api.AdapterPart]]:
    """Return an adapter's part of one linear: stacked rank, A, its scaling and the projections, of random values."""
    rng = np.random.default_rng(2)
    panels = -(-adapted.stacked // PANEL)
    nbytes = panels * api.panel_bytes(adapted.a_format, linear.k)
    arena = api.Arena(nbytes, huge_pages=False)
    source = rng.standard_normal((adapted.stacked, linear.k), np.float32) / np.float32(np.sqrt(linear.k))
    api.pack(adapted.a_format, source, arena)
    a = np.asarray(memoryview(arena)).view(np.uint8)[:nbytes].copy()
    scaling = np.zeros(panels * PANEL, np.float32)
    scaling[: adapted.stacked] = 2
    parts: list[api.AdapterPart] = []
    for index, part in enumerate(adapted.parts):
        shape = (part.panels, adapted.rank, PANEL)
        b_scale = np.full(part.panels * PANEL, 1e-4, np.float32) if adapted.storage == "int8" else None
        place = (adapted.rank, index * adapted.rank, part.first_panel, part.panel_step, part.panels)
        parts.append((*place, _b(rng, shape, adapted.storage), b_scale, None, None))
    return adapted.stacked, a, scaling, parts


def _b(rng: np.random.Generator, shape: tuple[int, int, int], storage: str) -> NDArray[np.generic]:
    if storage == "int8":
        return rng.integers(-127, 128, shape, np.int8)
    values = rng.standard_normal(shape, np.float32) * np.float32(0.01)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if storage == "bf16" else values
