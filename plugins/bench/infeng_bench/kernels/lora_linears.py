"""Programs of a linear with LoRA adapters on its rows: fused, unfused or without adapters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from infeng_inspect.api import OneOp, RandomAdapters

from infeng_bench.kernels import linears
from infeng_bench.kernels.linears import Linear
from infeng_bench.kernels.programs import Choice, KernelProgram
from infeng_core.api import kernels as kernels_api
from infeng_core.api.formats import ModelConfig, Part, layout
from infeng_core.api.kernels import a_form, shrink_needs

WAYS = ("base", "fused", "unfused")
"""base: the linear only. fused: shrink, then a linear that expands in its epilogue. unfused: shrink, linear, expand."""


@dataclass(frozen=True)
class Adapted:
    """Adapters on the rows of a linear, each of rank ``rank`` for every projection."""

    parts: Sequence[Part]
    rank: int
    adapters: int
    storage: str

    @property
    def stacked(self) -> int:
        """Rows of one adapter's A: the ranks of all projections."""
        return self.rank * len(self.parts)

    @property
    def a_format(self) -> str:
        """The packed format of A."""
        return a_form(self.storage)[0]

    @property
    def act(self) -> str:
        """The activation format that shrink reads."""
        return a_form(self.storage)[1]

    @property
    def needs(self) -> dict[str, list[str]]:
        """The needs of the shrink's problem, as a field of it."""
        return {"needs": needs} if (needs := shrink_needs(self.storage)) else {}


@dataclass(frozen=True)
class Kernels:
    """The kernels of one of WAYS; base has no shrink, only unfused has an epilogue kernel."""

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
    copies: int,
    rows: int,
    pool: kernels_api.Pool,
    reference: kernels_api.Library,
    like: OneOp | None,
) -> KernelProgram:
    """Return a program of ``copies`` linears on ``rows`` random rows; every copy has adapters of its own in memory.

    like: an op whose weights it shares.
    """
    adapters = None
    if kernels.shrink is not None:
        parts = [(part.first_panel, part.panel_step, part.panels) for part in adapted.parts]
        adapters = RandomAdapters(adapted.storage, min(adapted.adapters, rows), adapted.rank, parts)
    others = [choice.kernel for choice in (kernels.shrink, kernels.epilogue) if choice is not None]
    fused = ["lora"] if adapters and kernels.epilogue is None else []
    more = {"adapters": adapters, "others": others}
    return linears.subject(linear, kernels.linear, copies, rows, pool, reference, like, *fused, **more)
