"""A family's graph becomes a program of the native core: every op bound to kernels by batch size.

Two things are decided here and nowhere else. Which values are kept as int8, and how they are rounded to it: as linear
ops with integer weights take them, or their adapters where those are stored as int8. And what becomes of the steps that
follow an op: as many leading ones as the kernels of all batch sizes can take go into the op, the others become an
``epilogue`` op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.backends.native.binding import Binder, Bindings
from infeng_core.errors import KernelError, ModelError
from infeng_core.kernels.problems import MAX_STACKED_RANK, is_gated
from infeng_core.models import rope
from infeng_core.models.groups import LayerGroup, one_group
from infeng_core.models.ops import (
    PANEL,
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    Graph,
    KvAppend,
    Linear,
    Op,
    Residual,
    RmsNorm,
    Rope,
    Route,
    Scale,
    SiluMul,
    Softcap,
    Step,
    consumers,
    panel_columns,
)
from infeng_core.step import Limits

if TYPE_CHECKING:
    from infeng_core.formats import LoadedModel
    from infeng_core.formats.adapters.packed import AdapterDtype
    from infeng_core.kernels.choice import Selector
    from infeng_core.models.config import RopeConfig

Epilogues = list[tuple[str, "_native.Epilogue"]]  # with the name of each step
Rounding = tuple[int, bool]
"""How int8 rows are made: the inputs that share a scale, and whether they are rotated."""
PLAIN: Rounding = (64, False)
Emit = Callable[[Bindings, int | None, Sequence["_native.Epilogue"]], None]


class Planner:
    """Builds one program; used once."""

    def __init__(
        self,
        model: LoadedModel,
        graph: Graph,
        limits: Limits,
        selector: Selector,
        threads: int,
        adapters: AdapterDtype | None = None,
        kept: Collection[str] = (),
        groups: Sequence[LayerGroup] | None = None,
    ) -> None:
        """Plan ``graph`` over the tensors of ``model``; kernels come from ``selector``.

        adapters: how those that rows may use are stored; None: there will be none. kept: values that are wanted as f32
        after a run, beside the logits. groups: of layers whose cache blocks have a table; None: all have one.
        """
        groups = one_group(model.config.layers) if groups is None else groups
        self._places = {
            layer: (table, place) for table, group in enumerate(groups) for place, layer in enumerate(group.layers)
        }
        self._kept = frozenset({graph.logits, *kept})
        self._adapters = adapters
        self._model = model
        self._graph = graph
        self._limits = limits
        self.binder = Binder(selector, limits, threads, adapters)
        self._weights: dict[str, _native.Weight] = {}
        self._buffers: dict[str, int] = {}
        self._activations: dict[tuple[str, Rounding], int] = {}
        self._routings: dict[tuple[int, int], int] = {}
        self._route: Route | None = None  # the latest
        self.hidden: int | None = None
        """The buffer of what the head reads, of all rows; None where the graph does not end in a norm and a head."""
        self._tables: dict[RopeConfig, tuple[rope.Table, rope.Table, rope.Table | None]] = {}

    def build(self, program: _native.Program, cache: _native.KvCache, kv_format: str) -> int:
        """Add every op of the graph to ``program``; return the buffer of the logits."""
        self._program, self._cache, self._kv_format = program, cache, kv_format
        if self._adapters is not None:
            ranges = self._limits.max_segments * MAX_STACKED_RANK // PANEL
            program.open_adapters(self._adapters, columns=MAX_STACKED_RANK, max_ranges=ranges)
        family = f"family {self._model.config.family}"
        try:
            for index, op in enumerate(self._graph.ops):
                self._add(index, op, family)
                if isinstance(op, RmsNorm) and self._is_before_head(op):
                    self._add_hidden(op)
            return self._buffer(self._graph.logits)
        except KeyError as error:
            why = f"its graph names {error}, which is neither a value of it nor a tensor of the model"
            raise ModelError(family, why, "correct the family") from error

    def _add(self, index: int, op: Op, family: str) -> None:
        match op:
            case Embed():
                self._embed(index, op)
            case RmsNorm():
                self._rmsnorm(index, op)
            case Linear():
                self._linear(index, op)
            case Apply():
                self._apply(index, op)
            case Rope():
                self._rope(op)
            case KvAppend():
                self._kv_append(op)
            case Attention():
                self._attention(index, op)
            case Route():
                self._add_route(op)
            case ExpertLinear():
                self._expert_linear(index, op)
            case Combine():
                self._combine(index, op)
            case _:
                raise ModelError(family, f"its graph has {op!r}, which backend native does not run", "use another one")

    # ------------------------------------------------------------------------------------------------------ ops ---

    def _embed(self, index: int, op: Embed) -> None:
        weight = self._weight(op.weight)
        problem = {"weight": weight.format, "n": weight.panels * 16, "k": weight.k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            self._program.embed(kernels, weight, self._buffer(op.out) if out is None else out, module=op.weight)

        detail = self._detail(op.weight, weight)
        if self._adapters is None:
            self._emit(index, "embed", detail, problem, [], op.out, emit, can_fuse=False)
            return
        # What follows reads the rows after the adapters' products are added, in place.
        emit_alone = self.binder.choose("embed", False, problem)
        self.binder.note("embed", detail, emit_alone)
        out = self._buffer(op.out)
        emit(emit_alone, out, [])
        columns = panel_columns(weight.k)
        slot = self._program.embedding_slot(vocabulary=weight.n, panels=columns // PANEL)
        self._epilogue(detail, out, columns, out, [("lora", _native.Epilogue.lora(slot))])
        for step in self._quantized(index, op.out):
            self._epilogue(detail, out, columns, None, [step])

    def _rmsnorm(self, index: int, op: RmsNorm) -> None:
        vector = self._model.vectors[op.weight]
        sampled, x = self._graph.values[op.out].sampled, self._buffer(op.x)
        gather = sampled and not self._graph.values[op.x].sampled
        needs = ["norm_offset"] if op.offset else []
        role = f"{_role(op.weight)} {len(vector)}"
        problem = {"n": len(vector), "k": len(vector)}
        if op.heads:
            kernels = self.binder.choose("rmsnorm", sampled, {**problem, "needs": [*needs, "norm_heads"]})
            self.binder.note("rmsnorm", role, kernels)
            self._program.rmsnorm(kernels, x, vector, op.eps, x, offset=op.offset, heads=op.heads, column=op.column)
            return

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            more: dict[str, Any] = {"gather_samples": gather, "module": op.weight, "offset": op.offset}
            self._program.rmsnorm(kernels, x, vector, op.eps, out, epilogues, **more)

        needs += ["row_gather"] if gather else []
        self._emit(index, "rmsnorm", role, {**problem, "needs": needs}, [], op.out, emit)

    def _is_before_head(self, op: RmsNorm) -> bool:
        heads = [one for one in self._graph.ops if isinstance(one, Linear) and one.out == self._graph.logits]
        return bool(heads) and heads[-1].x == op.out and not self._graph.values[op.x].sampled

    def _add_hidden(self, op: RmsNorm) -> None:
        """Add the norm once more, of all rows and only in steps that ask for it."""
        vector = self._model.vectors[op.weight]
        self.hidden = self._program.buffer(self._graph.values[op.out].columns)
        needs = ["norm_offset"] if op.offset else []
        kernels = self.binder.choose("rmsnorm", False, {"n": len(vector), "k": len(vector), "needs": needs})
        self.binder.note("rmsnorm", f"{_role(op.weight)} {len(vector)} of all rows", kernels, is_listed=False)
        x = self._buffer(op.x)
        more: dict[str, Any] = {"module": op.weight, "on_demand": True, "offset": op.offset}
        self._program.rmsnorm(kernels, x, vector, op.eps, self.hidden, **more)

    def _linear(self, index: int, op: Linear) -> None:
        weight = self._weight(op.weight)
        act = self._model.tensors[op.weight].quant.activation
        x = self._activation(op.x, self._rounding(op.weight)) if self._is_int8(op.weight) else self._buffer(op.x)
        problem = {"weight": weight.format, "act": act, "n": weight.panels * 16, "k": weight.k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            self._program.linear(kernels, weight, x, out, epilogues, module="lm_head" if is_head else "")

        # Adapters know the head by this name even where it is tied to the embeddings.
        is_head = op.out == self._graph.logits
        lora = self._shrink(op, "lm_head" if is_head else op.weight, weight)
        steps = [*lora, *(self._step(step) for step in op.steps)]
        self._emit(index, "linear", self._detail(op.weight, weight), problem, steps, op.out, emit, weight.panels * 16)

    def _shrink(self, op: Linear | ExpertLinear, name: str, weight: _native.Weight, experts: int = 0) -> Epilogues:
        """Add the op that makes u for the adapters of a linear op; return the step that expands it."""
        if self._adapters is None:
            return []
        is_int8 = self._adapters == "int8"
        form, act = ("int8-row", "int8-g64") if is_int8 else (self._adapters, "f32")
        problem = {"weight": form, "act": act, "n": MAX_STACKED_RANK, "k": weight.k}
        kernels = self.binder.choose("shrink", self._graph.values[op.out].sampled, problem)
        self.binder.note("shrink", f"{_role(name)} {form} {weight.k}", kernels)
        x = self._activation(op.x, self._rounding(op.weight)) if is_int8 else self._buffer(op.x)
        panels, routing = weight.panels // max(1, experts), self._routing() if experts else None
        slot = self._program.shrink(kernels, name, x, k=weight.k, panels=panels, routing=routing)
        return [("lora", _native.Epilogue.lora(slot))]

    def _apply(self, index: int, op: Apply) -> None:
        steps = [self._step(step) for step in op.steps]
        steps += self._quantized(index, op.out)
        value = self._graph.values[op.x]
        out = self._buffer(op.out) if self._forms(index, op.out)[0] else None
        self._epilogue(op.out, self._buffer(op.x), value.columns, out, steps, value.sampled)

    def _rope(self, op: Rope) -> None:
        if op.rope not in self._tables:
            context = self._limits.context
            self._tables[op.rope] = (*rope.tables(op.rope, op.head_dim, context), rope.query_scale(op.rope, context))
        cos, sin, q_scale = self._tables[op.rope]
        heads: dict[str, Any] = {"heads": op.heads, "kv_heads": op.kv_heads, "head_dim": op.head_dim}
        needs = (["rope_norm"] if op.q_norm or op.k_norm else []) + (["rope_scale"] if q_scale is not None else [])
        kernels = self.binder.choose("rope", False, {"context": self._limits.context, "needs": needs, **heads})
        self.binder.note("rope", _heads(op.heads, op.kv_heads, op.head_dim), kernels)
        q_norm, k_norm = (self._shifted(name, op.offset) if name else None for name in (op.q_norm, op.k_norm))
        more: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "q_scale": q_scale, "eps": op.eps}
        self._program.rope(kernels, self._buffer(op.x), **heads, k_column=op.k_column, cos=cos, sin=sin, **more)

    def _shifted(self, name: str, offset: float) -> NDArray[np.float32]:
        """Return a vector with ``offset`` added, (size,) float32; without one the model's own, which takes no room."""
        vector = self._model.vectors[name]
        return vector + np.float32(offset) if offset else vector

    def _kv_append(self, op: KvAppend) -> None:
        config = self._model.config
        problem = {
            "kv": self._kv_format,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "context": self._limits.context,
        }
        kernels = self.binder.choose("kv_append", False, problem)
        self.binder.note("kv_append", f"{self._kv_format} {config.kv_heads} heads of {config.head_dim}", kernels)
        columns = {"k_column": op.k_column, "v_column": op.v_column}
        table, place = self._places[op.layer]
        self._program.kv_append(kernels, self._buffer(op.x), self._cache, place, **columns, table=table)

    def _attention(self, index: int, op: Attention) -> None:
        heads = {"heads": op.heads, "kv_heads": op.kv_heads, "head_dim": op.head_dim}
        asked = {"window": op.window, "softcap": op.softcap, "sinks": op.sinks}
        needs = [need for need, value in asked.items() if value]
        problem = {"kv": self._kv_format, "context": self._limits.context, "needs": needs, **heads}
        x = self._buffer(op.x)
        table, place = self._places[op.layer]

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            self._program.attention(
                kernels,
                x,
                self._cache,
                place,
                self._buffer(op.out) if out is None else out,
                heads=op.heads,
                window=op.window,
                scale=op.scale,
                softcap=op.softcap,
                sinks=self._model.vectors[op.sinks] if op.sinks else None,
                table=table,
                epilogues=epilogues,
            )

        detail = f"{self._kv_format} {_heads(op.heads, op.kv_heads, op.head_dim)}"
        self._emit(index, "attention", detail, problem, [], op.out, emit)

    # -------------------------------------------------------------------------------------------------- experts ---

    def _add_route(self, op: Route) -> None:
        self._route, columns = op, self._graph.values[op.x].columns
        as_int8 = self._is_int8(op.weight)
        act = "int8-g64" if as_int8 else "f32"
        problem = {"act": act, "n": op.experts, "k": columns, "heads": op.top_k}
        kernels = self.binder.choose("route", False, problem)
        self.binder.note("route", f"{act} {columns} to {op.top_k} of {op.experts} experts", kernels)
        kind = self._rounding(op.weight)
        x, out = (self._activation(name, kind) if as_int8 else self._buffer(name) for name in (op.x, op.out))
        more: dict[str, Any] = {"columns": columns, "share_of_chosen": op.share_of_chosen, "routing": self._routing()}
        self._program.route(kernels, self._buffer(op.logits), x, out, **more)
        if self._adapters is None or as_int8 == (self._adapters == "int8"):
            return
        # What adapters read of the experts' rows are copies of another type, made in steps that have such adapters.
        other = "f32" if as_int8 else "int8-g64"
        kernels = self.binder.choose("route", False, {**problem, "act": other})
        self.binder.note("route", f"{other} {columns} to {op.top_k} of {op.experts} experts", kernels)
        x, out = (self._buffer(name) if as_int8 else self._activation(name, kind) for name in (op.x, op.out))
        self._program.route(kernels, self._buffer(op.logits), x, out, for_adapters=True, **more)

    def _expert_linear(self, index: int, op: ExpertLinear) -> None:
        weight, quant = self._weight(op.weight), self._model.tensors[op.weight].quant
        routing, count = self._routing(), self._latest().experts
        x = self._buffer(op.x) if quant.is_float else self._activation(op.x, self._rounding(op.weight))
        problem = {"weight": weight.format, "act": quant.activation, "n": weight.panels * 16 // count, "k": weight.k}
        needs_f32, _ = self._forms(index, op.out)
        steps = [*self._shrink(op, op.weight, weight, count), *(self._step(step) for step in op.steps)]
        steps += self._quantized(index, op.out)
        names = [name for name, _ in steps]
        fused = self.binder.fused("linear", False, problem, names)
        if fused < len(names):
            why = f"the kernels that come first do not take {names[fused]} into themselves, which experts need"
            remedy = "put another library first in kernels.order; infeng plugins why linear shows them"
            raise KernelError(f"linear {op.weight}", why, remedy)
        kernels = self.binder.choose("linear", False, problem, names)
        role = f"{_role(op.weight)} {weight.format} {count} x {problem['n']}x{weight.k}"
        self.binder.note("linear", " + ".join([role, *names]), kernels)
        out = self._buffer(op.out) if needs_f32 else None
        self._program.expert_linear(kernels, weight, x, out, [step for _, step in steps], routing=routing)

    def _combine(self, index: int, op: Combine) -> None:
        columns, routing = self._graph.values[op.x].columns, self._routing()
        problem = {"n": columns, "k": columns, "heads": self._latest().top_k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            more = {"shared": self._optional(op.shared), "gate": self._optional(op.gate)}
            self._program.combine(kernels, self._buffer(op.x), columns, out, epilogues, routing=routing, **more)

        steps = [self._step(step) for step in op.steps]
        detail = f"{problem['heads']} x {columns}"
        self._emit(index, "combine", detail, problem, steps, op.out, emit, columns)

    def _optional(self, name: str) -> int | None:
        return self._buffer(name) if name else None

    def _latest(self) -> Route:
        """Return the route that experts follow."""
        if self._route is None:
            family = f"family {self._model.config.family}"
            raise ModelError(family, "its graph has experts before a route", "correct the family")
        return self._route

    def _routing(self) -> int:
        """Return the room for what the latest route says, which layers take turns on."""
        sizes = self._latest().experts, self._latest().top_k
        if sizes not in self._routings:
            self._routings[sizes] = self._program.routing(experts=sizes[0], top_k=sizes[1])
        return self._routings[sizes]

    # ------------------------------------------------------------------------------------------ fusing, binding ---

    def _emit(
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
        """Add one op that writes the value ``out`` after ``steps``; ``columns`` of its result before them."""
        sampled = self._graph.values[out].sampled
        needs_f32, _ = self._forms(index, out)
        steps = [*steps, *self._quantized(index, out)]
        names = [name for name, _ in steps]
        fused = self.binder.fused(op, sampled, problem, names) if can_fuse else 0
        kernels = self.binder.choose(op, sampled, problem, names[:fused])
        self.binder.note(op, " + ".join([detail, *names[:fused]]), kernels)
        rest = steps[fused:]
        final = self._buffer(out) if needs_f32 else None
        if not rest:
            emit(kernels, final, [step for _, step in steps])
            return
        # What follows reads the result from f32. It gets a buffer of its own where the value's buffer still holds an
        # operand (the residual) or has another width.
        is_only_quantize = all(name.startswith("quantize") for name in names[fused:])
        if is_only_quantize or any(map(is_gated, names[:fused])):
            columns = self._graph.values[out].columns
        between = self._buffer(out) if is_only_quantize else self._scratch(columns, sampled)
        emit(kernels, between, [step for _, step in steps[:fused]])
        self._epilogue(detail, between, columns, None if is_only_quantize else final, rest, sampled)

    def _epilogue(
        self, detail: str, x: int, columns: int, out: int | None, steps: Epilogues, sampled: bool = False
    ) -> None:
        """Add an op that does nothing but ``steps``."""
        names = [name for name, _ in steps]
        kernels = self.binder.choose("epilogue", sampled, {"n": columns, "k": columns}, names)
        self.binder.note("epilogue", f"{detail}: {' + '.join(names)}", kernels)
        self._program.epilogue(kernels, x, columns, out, [step for _, step in steps])

    def _quantized(self, index: int, out: str) -> Epilogues:
        """Return the steps that round the value of op ``index``, one for each way in which it is read, plain first."""
        return [
            ("quantize" if kind == PLAIN else "quantize_wide", _native.Epilogue.quantize(self._activation(out, kind)))
            for kind in self._forms(index, out)[1]
        ]

    def _forms(self, index: int, out: str) -> tuple[bool, list[Rounding]]:
        """Return whether the value that op ``index`` writes is read as f32, and how it is rounded where as int8."""
        readers = consumers(self._graph, index)
        as_int8 = [reader.weight for reader in readers if self._takes_int8(reader, out)]
        adapted = [reader.weight for reader in readers if self._is_adapted(reader, out)]
        adapters = {self._adapters} if adapted else set()
        roundings = {self._rounding(weight) for weight in (*as_int8, *(adapted if "int8" in adapters else ()))}
        as_operand = [
            reader
            for reader in readers
            if isinstance(reader, Linear | ExpertLinear | Combine)
            and any(isinstance(s, Residual) and s.value == out for s in reader.steps)
        ]
        needs_f32 = len(as_int8) < len(readers) or bool(as_operand) or out in self._kept
        return needs_f32 or "f32" in adapters or "bf16" in adapters, sorted(roundings)

    @staticmethod
    def _is_adapted(reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        """Return whether adapters read ``value`` where an op does; of a route they read its copies."""
        return isinstance(reader, Linear | ExpertLinear | Route) and reader.x == value

    def _takes_int8(self, reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        return self._is_adapted(reader, value) and self._is_int8(reader.weight)

    def _is_int8(self, weight: str) -> bool:
        """Return whether what a linear with ``weight`` reads is int8."""
        return not self._model.tensors[weight].quant.is_float

    def _rounding(self, weight: str) -> Rounding:
        """Return how what a linear with ``weight`` reads as int8 is made; adapters of floats read plain groups."""
        quant = self._model.tensors[weight].quant
        return quant.group, quant.is_rotated

    # ------------------------------------------------------------------------------------------------- operands ---

    def _weight(self, name: str) -> _native.Weight:
        if name not in self._weights:
            self._weights[name] = self._model.tensors[name].native()
        return self._weights[name]

    def _step(self, step: Step) -> tuple[str, _native.Epilogue]:
        match step:
            case Bias(vector):
                return "bias", _native.Epilogue.bias(self._model.vectors[vector])
            case Residual(value):
                return "residual", _native.Epilogue.residual(self._buffer(value))
            case SiluMul():
                return "silu_mul", _native.Epilogue.silu_mul()
            case GatedMul(function, slope, limit):
                return f"{function}_mul", _native.Epilogue.gated_mul(function, slope, limit)
            case Scale(factor):
                return "scale", _native.Epilogue.scale(factor)
            case Softcap(cap):
                return "softcap", _native.Epilogue.softcap(cap)

    def buffer(self, name: str) -> int:
        """Return the buffer of a value's float32 rows."""
        return self._buffer(name)

    def _buffer(self, name: str) -> int:
        if name not in self._buffers:
            value = self._graph.values[name]
            self._buffers[name] = self._program.buffer(value.columns, samples=value.sampled, copies=value.copies)
        return self._buffers[name]

    def _activation(self, name: str, kind: Rounding) -> int:
        if (name, kind) not in self._activations:
            value, (group, is_rotated) = self._graph.values[name], kind
            more: dict[str, Any] = {"samples": value.sampled, "copies": value.copies}
            made = self._program.activation(value.columns, group=group, rotated=is_rotated, **more)
            self._activations[name, kind] = made
        return self._activations[name, kind]

    def _scratch(self, columns: int, sampled: bool) -> int:
        name = f"scratch {columns} {sampled}"
        if name not in self._buffers:
            self._buffers[name] = self._program.buffer(columns, samples=sampled)
        return self._buffers[name]

    def _detail(self, name: str, weight: _native.Weight) -> str:
        return f"{_role(name)} {weight.format} {weight.n}x{weight.k}"


def _role(name: str) -> str:
    """Return a tensor's name without its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


def _heads(heads: int, kv_heads: int, head_dim: int) -> str:
    return f"{heads}/{kv_heads} heads of {head_dim}"
