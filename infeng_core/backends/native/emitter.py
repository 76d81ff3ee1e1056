"""An op of a graph and the steps that follow it become one op of the program or two, bound to kernels.

Leading steps that the kernels of all batch sizes can fuse go into the op; the others become an ``epilogue`` op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infeng_core import _native
from infeng_core.backends.native.binding import Binder, Bindings
from infeng_core.backends.native.forms import PLAIN, Forms, Rounding
from infeng_core.backends.native.operands import Epilogues, Operands
from infeng_core.formats.quant import ROW
from infeng_core.kernels.problems import MAX_STACKED_RANK, is_gated
from infeng_core.models.ops import ExpertLinear, Linear

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import AdapterDtype

TILES = 8
"""The fewest output groups per worker for which a linear rounds wide groups itself: its tiles are whole groups, and
with few tiles the workers wait for the last one longer than a separate op takes."""

Emit = Callable[[Bindings, int | None, Sequence[_native.Epilogue]], None]
"""Adds an op to the program: with these kernels, into this buffer unless it is rounded at once, with these steps."""


class Emitter:
    """Adds ops to one program."""

    def __init__(self, operands: Operands, forms: Forms, binder: Binder, adapters: AdapterDtype | None) -> None:
        """Add ops over ``operands``, with the kernels that ``binder`` finds, for adapters stored as type
        ``adapters``."""
        self.operands = operands
        self.forms = forms
        self.binder = binder
        self.adapters = adapters

    def emit(
        self,
        index: int,
        op: str,
        detail: str,
        problem: dict[str, Any],
        steps: Epilogues,
        out: str,
        emit: Emit,
        columns: int = 0,
        *,
        can_fuse: bool = True,
    ) -> None:
        """Add op ``index``, which writes the value ``out`` after ``steps``; ``columns`` of its result before them."""
        sampled = self.operands.graph.values[out].sampled
        needs_f32, roundings = self.forms.of(index, out)
        steps = [*steps, *self.operands.quantized(out, roundings)]
        names = [name for name, _ in steps]
        fused = self.binder.fused(op, sampled, problem, names) if can_fuse else 0
        if op == "linear" and not self._has_tiles(out, roundings):
            fused = min(fused, names.index("quantize_wide"))
        kernels = self.binder.choose(op, sampled, problem, names[:fused])
        self.binder.note(op, " + ".join([detail, *names[:fused]]), kernels)
        rest = steps[fused:]
        final = self.operands.buffer(out) if needs_f32 else None
        if not rest:
            emit(kernels, final, [step for _, step in steps])
            return
        # Later ops read the result as f32. It gets a buffer of its own if the value's buffer still holds an operand
        # (the residual) or has another width.
        is_only_quantize = all(name.startswith("quantize") for name in names[fused:])
        if is_only_quantize or any(map(is_gated, names[:fused])):
            columns = self.operands.graph.values[out].columns
        between = self.operands.buffer(out) if is_only_quantize else self.operands.scratch(columns, sampled)
        emit(kernels, between, [step for _, step in steps[:fused]])
        self.epilogue(detail, between, columns, None if is_only_quantize else final, rest, sampled)

    def _has_tiles(self, out: str, roundings: Sequence[Rounding]) -> bool:
        """Return whether a linear whose tiles are whole rounded groups has enough tiles for all workers."""
        group = max((group for group, _ in roundings if group != ROW), default=PLAIN[0])
        columns = self.operands.graph.values[out].columns
        return group == PLAIN[0] or columns >= TILES * group * self.binder.threads

    def epilogue(
        self, detail: str, x: int, columns: int, out: int | None, steps: Epilogues, sampled: bool = False
    ) -> None:
        """Add an op that consists of ``steps`` alone."""
        names = [name for name, _ in steps]
        kernels = self.binder.choose("epilogue", sampled, {"n": columns, "k": columns}, names)
        self.binder.note("epilogue", f"{detail}: {' + '.join(names)}", kernels)
        self.operands.program.epilogue(kernels, x, columns, out, [step for _, step in steps])

    def shrink(
        self, op: Linear | ExpertLinear, name: str, weight: _native.Weight, panels: int, routing: int | None = None
    ) -> Epilogues:
        """Add the op that computes u for the adapters of a linear op; return the step that expands it to ``panels``."""
        if self.adapters is None:
            return []
        is_int8 = self.adapters == "int8"
        rounding = self.forms.rounding(op.weight)
        act = "f32" if not is_int8 else "int8-row" if rounding[0] == ROW else "int8-g64"
        form = "int8-row" if is_int8 else self.adapters
        problem = {"weight": form, "act": act, "n": MAX_STACKED_RANK, "k": weight.k}
        kernels = self.binder.choose("shrink", self.operands.graph.values[op.out].sampled, problem)
        self.binder.note("shrink", f"{role(name)} {form} {weight.k}", kernels)
        x = self.operands.rows(op.x, rounding if is_int8 else None)
        slot = self.operands.program.shrink(kernels, name, x, k=weight.k, panels=panels, routing=routing)
        return [("lora", _native.Epilogue.lora(slot))]


def role(name: str) -> str:
    """Return a tensor's name without its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


def described(name: str, weight: _native.Weight) -> str:
    """Return a tensor's name in lists of kernels: ``layers.*.o_proj int8-row 64x64``."""
    return f"{role(name)} {weight.format} {weight.n}x{weight.k}"
