"""Mixtures of experts in a program: the route, the linears of the chosen experts, and the sum of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infeng_core import _native
from infeng_core.backends.native.binding import Bindings
from infeng_core.backends.native.emitter import Emitter, role
from infeng_core.errors import KernelError, ModelError
from infeng_core.models.ops import Combine, ExpertLinear, Route


class Experts:
    """Adds the ops of experts to one program."""

    def __init__(self, emitter: Emitter) -> None:
        """Add ops through ``emitter``."""
        self._emitter = emitter
        self._operands, self._forms, self._binder = emitter.operands, emitter.forms, emitter.binder
        self._routings: dict[tuple[int, int], int] = {}
        self._route: Route | None = None  # the latest

    def route(self, op: Route) -> None:
        """Add the op that chooses the experts of each row and copies the row for them."""
        self._route, columns = op, self._operands.graph.values[op.x].columns
        as_int8 = self._forms.is_int8(op.weight)
        kind = self._forms.rounding(op.weight)
        sizes: dict[str, Any] = {"columns": columns, "share_of_chosen": op.share_of_chosen}

        def add(act: str, *, for_adapters: bool = False) -> None:
            problem = {"act": act, "n": op.experts, "k": columns, "heads": op.top_k}
            kernels = self._binder.choose("route", False, problem)
            self._binder.note("route", f"{act} {columns} to {op.top_k} of {op.experts} experts", kernels)
            x, out = (self._operands.rows(name, None if act == "f32" else kind) for name in (op.x, op.out))
            more: dict[str, Any] = {**sizes, "routing": self._routing(), "for_adapters": for_adapters}
            self._operands.program.route(kernels, self._operands.buffer(op.logits), x, out, **more)

        add("int8-g64" if as_int8 else "f32")
        if self._emitter.adapters is None or as_int8 == (self._emitter.adapters == "int8"):
            return
        # Adapters may need the experts' rows in another type; such copies are made only in steps with adapters.
        add("f32" if as_int8 else "int8-g64", for_adapters=True)

    def linear(self, index: int, op: ExpertLinear) -> None:
        """Add the linears of a layer's experts, one op; raises KernelError where kernels leave a step out."""
        operands, weight = self._operands, self._operands.weight(op.weight)
        quant, routing, count = operands.model.tensors[op.weight].quant, self._routing(), self._latest().experts
        x = operands.rows(op.x, None if quant.is_float else self._forms.rounding(op.weight))
        problem = {"weight": weight.format, "act": quant.activation, "n": weight.panels * 16 // count, "k": weight.k}
        needs_f32, roundings = self._forms.of(index, op.out)
        lora = self._emitter.shrink(op, op.weight, weight, weight.panels // count, routing)
        steps = [*lora, *(operands.step(step) for step in op.steps), *operands.quantized(op.out, roundings)]
        names = [name for name, _ in steps]
        fused = self._binder.fused("linear", False, problem, names)
        rest = steps[fused:]
        if any(name != "quantize_row" for name in names[fused:]):
            why = f"the kernels that come first do not take {names[fused]} into themselves, which experts need"
            remedy = "put another library first in kernels.order; infeng plugins why linear shows them"
            raise KernelError(f"linear {op.weight}", why, remedy)
        kernels = self._binder.choose("linear", False, problem, names[:fused])
        detail = f"{role(op.weight)} {weight.format} {count} x {problem['n']}x{weight.k}"
        self._binder.note("linear", " + ".join([detail, *names[:fused]]), kernels)
        out = operands.buffer(op.out) if needs_f32 or rest else None
        operands.program.expert_linear(kernels, weight, x, out, [step for _, step in steps[:fused]], routing=routing)
        if rest and out is not None:  # the scale of a row is known when all of the row's tiles are done
            self._emitter.epilogue(detail, out, operands.graph.values[op.out].columns, None, rest)

    def combine(self, index: int, op: Combine) -> None:
        """Add the op that sums the experts' results for each row."""
        operands, routing = self._operands, self._routing()
        columns = operands.graph.values[op.x].columns
        problem = {"n": columns, "k": columns, "heads": self._latest().top_k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            more = {"shared": operands.optional(op.shared), "gate": operands.optional(op.gate)}
            operands.program.combine(kernels, operands.buffer(op.x), columns, out, epilogues, routing=routing, **more)

        steps = [operands.step(step) for step in op.steps]
        detail = f"{problem['heads']} x {columns}"
        self._emitter.emit(index, "combine", detail, problem, steps, op.out, emit, columns)

    def _latest(self) -> Route:
        """Return the latest route, which the experts' linears use."""
        if self._route is None:
            family = f"family {self._operands.model.config.family}"
            raise ModelError(family, "its graph has experts before a route", "correct the family")
        return self._route

    def _routing(self) -> int:
        """Return the buffer of the latest route's result, which layers share in turn."""
        sizes = self._latest().experts, self._latest().top_k
        if sizes not in self._routings:
            self._routings[sizes] = self._operands.program.routing(experts=sizes[0], top_k=sizes[1])
        return self._routings[sizes]
