"""The ops of a graph become ops of a program, bound to kernels, over the program's weights and buffers.

The values of a graph are read as float32, as int8 rows, or as both. A value is int8 if linear ops with integer
weights, or adapters stored as int8, read it; it is rounded once for each kind of rounding that they need. An op and
the steps that follow it become one op of the program or two: leading steps that the kernels of all batch sizes can
fuse go into the op; the others become an ``epilogue`` op. An op whose kernels take steps but not ``lora``, which comes
first, has a second form for batches in which no row uses an adapter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from infeng_core import _native
from infeng_core.backends.native.binding import Binder, Bindings
from infeng_core.errors import KernelError, ModelError
from infeng_core.formats.quant import ROW
from infeng_core.kernels.problems import MAX_STACKED_RANK, is_gated
from infeng_core.kernels.storages import A_FORMATS, INTEGERS, shrink_needs
from infeng_core.models.ops import (
    Activate,
    Bias,
    Combine,
    ExpertLinear,
    GatedMul,
    Graph,
    Linear,
    Mul,
    Op,
    Residual,
    Route,
    RowScale,
    Scale,
    SiluMul,
    Softcap,
    Step,
    consumers,
)

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import AdapterDtype
    from infeng_core.formats.tensors import LoadedModel

Rounding = tuple[int, int]
"""How int8 rows are made: the inputs that share a scale, and the inputs that are rotated together, 0 for none."""
PLAIN: Rounding = (64, 0)

Epilogues = list[tuple[str, _native.Epilogue]]
"""Steps that follow an op, each with its name."""

TILES = 8
"""The fewest output groups per worker for which a linear rounds wide groups itself: its tiles are whole groups, and
with few tiles the workers wait for the last one longer than a separate op takes."""

Emit = Callable[[Bindings, int | None, Sequence[_native.Epilogue]], None]
"""Adds an op to the program: with these kernels, into this buffer unless it is rounded at once, with these steps."""


class Forms:
    """The forms of one graph's values."""

    def __init__(self, model: LoadedModel, graph: Graph, adapters: AdapterDtype | None, kept: Collection[str]) -> None:
        """``adapters``: the type in which adapters are stored, None without; ``kept``: values needed as f32 anyway."""
        self._model = model
        self._graph = graph
        self._adapters = adapters
        self._kept = frozenset(kept)

    def of(self, index: int, out: str) -> tuple[bool, list[Rounding]]:
        """Return whether the value that op ``index`` writes is read as f32, and the roundings in which it is read as
        int8."""
        readers = consumers(self._graph, index)
        as_int8 = [reader.weight for reader in readers if self._takes_int8(reader, out)]
        adapted = [reader.weight for reader in readers if self._is_adapted(reader, out)]
        adds_int8 = bool(adapted) and self._adapters in INTEGERS
        adds_f32 = bool(adapted) and self._adapters is not None and not adds_int8
        roundings = {self.rounding(weight) for weight in (*as_int8, *(adapted if adds_int8 else ()))}
        as_operand = [
            reader
            for reader in readers
            if isinstance(reader, Linear | ExpertLinear | Combine)
            and any(isinstance(s, Residual | Mul) and s.value == out for s in reader.steps)
        ]
        needs_f32 = len(as_int8) < len(readers) or bool(as_operand) or out in self._kept
        return needs_f32 or adds_f32, sorted(roundings)

    def is_int8(self, weight: str) -> bool:
        """Return whether a linear with ``weight`` reads int8 rows."""
        return not self._model.tensors[weight].quant.is_float

    def rounding(self, weight: str) -> Rounding:
        """Return how the int8 input of a linear with ``weight`` is rounded; for a float weight, adapters need plain
        groups."""
        tensor = self._model.tensors[weight]
        return tensor.quant.group, tensor.quant.rotation(tensor.k)

    @staticmethod
    def _is_adapted(reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        """Return whether adapters of op ``reader`` read ``value``; adapters of a route read its copies."""
        return isinstance(reader, Linear | ExpertLinear | Route) and reader.x == value

    def _takes_int8(self, reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        return self._is_adapted(reader, value) and self.is_int8(reader.weight)


class Operands:
    """The operands of one program."""

    def __init__(self, program: _native.Program, model: LoadedModel, graph: Graph, *, of_host: bool = False) -> None:
        """Allocate buffers in ``program`` for the values of ``graph``, over the tensors of ``model``.

        of_host: in the host's memory, for experts of a device's program that the host computes.
        """
        self._side = {"on_host": True} if of_host else {}
        self.program = program
        self.model = model
        self.graph = graph
        self._weights: dict[str, _native.Weight] = {}
        self._buffers: dict[str, int] = {}
        self._activations: dict[tuple[str, Rounding], int] = {}

    def weight(self, name: str) -> _native.Weight:
        """Return a tensor of the model; raises KeyError for an unknown name."""
        if name not in self._weights:
            self._weights[name] = self.model.tensors[name].native()
        return self._weights[name]

    def buffer(self, name: str) -> int:
        """Return the buffer of a value's float32 rows; raises KeyError for a name that the graph lacks."""
        if name not in self._buffers:
            value = self.graph.values[name]
            sizes: dict[str, Any] = {"samples": value.sampled, "copies": value.copies, **self._side}
            self._buffers[name] = self.program.buffer(value.columns, **sizes)
        return self._buffers[name]

    def optional(self, name: str) -> int | None:
        """Return the buffer of a value, None for an empty name."""
        return self.buffer(name) if name else None

    def rows(self, name: str, kind: Rounding | None) -> int:
        """Return the buffer of a value's rows: rounded to int8 as ``kind`` says, or with None in float32."""
        if kind is None:
            return self.buffer(name)
        if (name, kind) not in self._activations:
            value, (group, rotated) = self.graph.values[name], kind
            more: dict[str, Any] = {"samples": value.sampled, "copies": value.copies, **self._side}
            made = self.program.activation(value.columns, group=group, rotated=rotated, **more)
            self._activations[name, kind] = made
        return self._activations[name, kind]

    def scratch(self, columns: int, sampled: bool) -> int:
        """Return a buffer for rows between an op and the steps that it could not fuse."""
        name = f"scratch {columns} {sampled}"
        if name not in self._buffers:
            self._buffers[name] = self.program.buffer(columns, samples=sampled)
        return self._buffers[name]

    def step(self, step: Step) -> tuple[str, _native.Epilogue]:
        """Return the name of a graph's step, and the epilogue that programs take for it."""
        match step:
            case Bias(vector):
                return "bias", _native.Epilogue.bias(self.model.vectors[vector])
            case RowScale(vector):
                return "row_scale", _native.Epilogue.row_scale(self.model.vectors[vector])
            case Residual(value):
                return "residual", _native.Epilogue.residual(self.buffer(value))
            case Mul(value, function):
                name = "mul" if function == "identity" else f"mul_{function}"
                return name, _native.Epilogue.mul(self.buffer(value), function)
            case SiluMul():
                return "silu_mul", _native.Epilogue.silu_mul()
            case GatedMul(function, slope, limit):
                return f"{function}_mul", _native.Epilogue.gated_mul(function, slope, limit)
            case Scale(factor):
                return "scale", _native.Epilogue.scale(factor)
            case Softcap(cap):
                return "softcap", _native.Epilogue.softcap(cap)
            case Activate(function):
                return function, _native.Epilogue.activate(function)

    def quantized(self, out: str, roundings: list[Rounding]) -> Epilogues:
        """Return the steps that round a value, one for each way."""
        return [(step_of(kind), _native.Epilogue.quantize(self.rows(out, kind))) for kind in roundings]


def step_of(kind: Rounding) -> str:
    """Return the name of the step that rounds rows."""
    if kind == PLAIN:
        return "quantize"
    return "quantize_row" if kind[0] == ROW else "quantize_wide"


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
        final = self.operands.buffer(out) if needs_f32 else None

        def fused(steps: Epilogues) -> int:
            names = [name for name, _ in steps]
            found = self.binder.fused(op, sampled, problem, names) if can_fuse else 0
            if op == "linear" and not self._has_tiles(out, roundings):
                found = min(found, names.index("quantize_wide"))
            return found

        def add(steps: Epilogues, count: int, when: str = "") -> None:
            names, taken = [name for name, _ in steps], [step for _, step in steps[:count]]
            kernels = self.binder.choose(op, sampled, problem, names[:count])
            label = f"{detail}, {when}" if when else detail
            self.binder.note(op, " + ".join([label, *names[:count]]), kernels)
            if can_fuse:
                self.binder.note_fused(op, label, sampled, problem, names, count)
            if count == len(steps):
                emit(kernels, final, taken)
                return
            # Later ops read the result as f32. It gets a buffer of its own if the value's buffer still holds an operand
            # (the residual) or has another width.
            is_only_quantize = all(name.startswith("quantize") for name in names[count:])
            is_final = is_only_quantize or any(map(is_gated, names[:count]))
            width = self.operands.graph.values[out].columns if is_final else columns
            between = self.operands.buffer(out) if is_only_quantize else self.operands.scratch(width, sampled)
            emit(kernels, between, taken)
            self.epilogue(label, between, width, None if is_only_quantize else final, steps[count:], sampled)

        taken, plain = fused(steps), [step for step in steps if step[0] != "lora"]
        without = fused(plain) if taken == 0 and len(plain) < len(steps) else 0
        if without == 0:
            add(steps, taken)
            return
        # Kernels that do not take `lora`, which comes first, would take nothing after it either. Two forms of the op,
        # of which each step runs one, let them take the others where no row has an adapter.
        self.operands.program.set_branch(False)
        add(plain, without, "without adapters")
        self.operands.program.set_branch(True)
        add(steps, 0, "with adapters")
        self.operands.program.set_branch(None)

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
        is_int8 = self.adapters in INTEGERS
        rounding = self.forms.rounding(op.weight)
        act = "f32" if not is_int8 else "int8-row" if rounding[0] == ROW else "int8-g64"
        form = A_FORMATS[self.adapters]
        needs = shrink_needs(self.adapters)
        problem = {"weight": form, "act": act, "n": MAX_STACKED_RANK, "k": weight.k, "needs": needs}
        kernels = self.binder.choose("shrink", self.operands.graph.values[op.out].sampled, problem)
        self.binder.note("shrink", f"{role(name)} {form} {weight.k}", kernels)
        x = self.operands.rows(op.x, rounding if is_int8 else None)
        slot = self.operands.program.shrink(kernels, name, x, k=weight.k, panels=panels, routing=routing)
        return [("lora", _native.Epilogue.lora(slot))]


class Experts:
    """Adds the ops of experts to one program."""

    def __init__(self, emitter: Emitter, host: Emitter | None = None) -> None:
        """Add ops through ``emitter``, and through ``host`` where the host computes some experts of a device's
        program."""
        self._emitter, self._host = emitter, host
        self._delayed: list[tuple[int, ExpertLinear]] = []  # behind the device's, which run meanwhile
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
            problem = {"act": act, "k": columns, "experts": op.experts, "top_k": op.top_k}
            kernels = self._binder.choose("route", False, problem)
            self._binder.note("route", f"{act} {columns} to {op.top_k} of {op.experts} experts", kernels)
            x, out = (self._operands.rows(name, None if act == "f32" else kind) for name in (op.x, op.out))
            more: dict[str, Any] = {**sizes, "routing": self._routing(), "for_adapters": for_adapters}
            self._operands.program.route(kernels, self._operands.buffer(op.logits), x, out, **more)

        add("int8-g64" if as_int8 else "f32")
        if self._host is not None:
            self._hand_over(op.out, kind if as_int8 else None, self._operands, self._host.operands)
            return
        if self._emitter.adapters is None or as_int8 == (self._emitter.adapters in INTEGERS):
            return
        # Adapters may need the experts' rows in another type; such copies are made only in steps with adapters.
        add("f32" if as_int8 else "int8-g64", for_adapters=True)

    def linear(self, index: int, op: ExpertLinear) -> None:
        """Add the linears of a layer's experts, one op; raises KernelError where kernels leave a step out."""
        self._add_linear(self._emitter, index, op)
        if self._host is not None:
            self._delayed.append((index, op))

    def _add_linear(self, emitter: Emitter, index: int, op: ExpertLinear) -> None:
        operands, binder, weight = emitter.operands, emitter.binder, emitter.operands.weight(op.weight)
        quant, routing, count = operands.model.tensors[op.weight].quant, self._routing(), self._latest().experts
        x = operands.rows(op.x, None if quant.is_float else self._forms.rounding(op.weight))
        problem = {"weight": weight.format, "act": quant.activation, "n": weight.panels * 16 // count, "k": weight.k}
        needs_f32, roundings = self._forms.of(index, op.out)
        lora = [] if self._host else emitter.shrink(op, op.weight, weight, weight.panels // count, routing)
        steps = [*lora, *(operands.step(step) for step in op.steps), *operands.quantized(op.out, roundings)]
        names = [name for name, _ in steps]
        fused = binder.fused("linear", False, problem, names)
        rest = steps[fused:]
        if any(name != "quantize_row" for name in names[fused:]):
            why = f"the kernels that come first do not take {names[fused]} into themselves, which experts need"
            remedy = "put another library first in kernels.order; infeng plugins why linear shows them"
            raise KernelError(f"linear {op.weight}", why, remedy)
        kernels = binder.choose("linear", False, problem, names[:fused])
        detail = f"{role(op.weight)} {weight.format} {count} x {problem['n']}x{weight.k}"
        binder.note("linear", " + ".join([detail, *names[:fused]]), kernels)
        binder.note_fused("linear", detail, False, problem, names, fused)
        out = operands.buffer(op.out) if needs_f32 or rest else None
        operands.program.expert_linear(kernels, weight, x, out, [step for _, step in steps[:fused]], routing=routing)
        if rest and out is not None:  # the scale of a row is known when all of the row's tiles are done
            emitter.epilogue(detail, out, operands.graph.values[op.out].columns, None, rest)

    def combine(self, index: int, op: Combine) -> None:
        """Add the op that sums the experts' results for each row."""
        if self._host is not None:
            for each in self._delayed:
                self._add_linear(self._host, *each)
            self._delayed.clear()
            self._hand_over(op.x, None, self._host.operands, self._operands)
        operands, routing = self._operands, self._routing()
        columns = operands.graph.values[op.x].columns
        problem = {"n": columns, "k": columns, "top_k": self._latest().top_k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            more = {"shared": operands.optional(op.shared), "gate": operands.optional(op.gate)}
            operands.program.combine(kernels, operands.buffer(op.x), columns, out, epilogues, routing=routing, **more)

        steps = [operands.step(step) for step in op.steps]
        detail = f"{problem['top_k']} x {columns}"
        self._emitter.emit(index, "combine", detail, problem, steps, op.out, emit, columns)

    def _hand_over(self, name: str, kind: Rounding | None, source: Operands, target: Operands) -> None:
        self._operands.program.hand_over(source.rows(name, kind), target.rows(name, kind))

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


def role(name: str) -> str:
    """Return a tensor's name without its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


def described(name: str, weight: _native.Weight) -> str:
    """Return a tensor's name in lists of kernels: ``layers.*.o_proj int8-row 64x64``."""
    return f"{role(name)} {weight.format} {weight.n}x{weight.k}"
