"""A family's graph becomes a program of the native core: every op bound to kernels by batch size.

``emitter`` decides which values are kept as int8, and which of the steps after an op are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from infeng_core import _native
from infeng_core.backends.native.adapters import HeadNorms
from infeng_core.backends.native.binding import Binder, Bindings
from infeng_core.backends.native.emitter import Emitter, Experts, Forms, Operands, described, role
from infeng_core.backends.native.row_ops import arguments_of
from infeng_core.batch import Limits
from infeng_core.errors import ModelError
from infeng_core.kernels.problems import MAX_STACKED_RANK
from infeng_core.models import rope
from infeng_core.models.groups import LayerGroup, one_group
from infeng_core.models.ops import (
    PANEL,
    Apply,
    Attention,
    Combine,
    Embed,
    ExpertLinear,
    Graph,
    KvAppend,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Route,
    RowOp,
    panel_columns,
    reads,
    writes,
)

if TYPE_CHECKING:
    from infeng_core.backends.native.split import HostExperts
    from infeng_core.formats.adapters.packed import AdapterDtype
    from infeng_core.formats.tensors import LoadedModel
    from infeng_core.kernels.choice import Selector
    from infeng_core.models.config import RopeConfig

ATTENTION_NEEDS = {"window": "window", "softcap": "softcap", "sinks": "sinks", "slopes": "alibi"}
"""The need of a problem by the field of an attention that is not 0 or empty."""


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
        host: HostExperts | None = None,
    ) -> None:
        """Plan ``graph`` over the tensors of ``model``; kernels come from ``selector``.

        adapters: the type in which adapters are stored; None: there will be none. kept: values needed as f32 after a
        run, besides the logits. groups: of layers whose cache blocks have a table; None: one group of all layers.
        host: computes some of the experts of a device's program; None: it computes none.
        """
        groups = one_group(model.config.layers) if groups is None else groups
        self._places = {
            layer: (table, place) for table, group in enumerate(groups) for place, layer in enumerate(group.layers)
        }
        self._adapters = adapters
        self._model = model
        self._graph = graph
        self._limits = limits
        self._forms = Forms(model, graph, adapters, {graph.logits, *kept})
        self.binder = Binder(selector, limits, threads, adapters)
        self._host = host
        self._host_binder = None if host is None else Binder(host.selector, limits, threads, adapters, self.binder)
        self.hidden: int | None = None
        """The buffer of the head's input, of all rows; None where the graph does not end in a norm and a head."""
        self.head_norms: dict[str, HeadNorms] = {}
        self._tables: dict[RopeConfig, tuple[rope.Table, rope.Table, rope.Table | None]] = {}

    def build(self, program: _native.Program, cache: _native.KvCache, kv_format: str) -> int:
        """Add every op of the graph to ``program``; return the buffer of the logits."""
        self._program, self._cache, self._kv_format = program, cache, kv_format
        self._operands = Operands(program, self._model, self._graph)
        self._emitter = Emitter(self._operands, self._forms, self.binder, self._adapters)
        self._experts = Experts(self._emitter, self._host_emitter())
        if self._adapters is not None:
            ranges = self._limits.max_segments * MAX_STACKED_RANK // PANEL
            program.open_adapters(self._adapters, columns=MAX_STACKED_RANK, max_ranges=ranges)
        family = f"family {self._model.config.family}"
        self._require_sound(family)
        try:
            for index, op in enumerate(self._graph.ops):
                self._add(index, op)
                if isinstance(op, RmsNorm | LayerNorm | RowOp) and self._is_before_head(op):
                    self._add_hidden(op)
            return self.buffer(self._graph.logits)
        except KeyError as error:
            why = f"its graph names {error}, which is neither a value of it nor a tensor of the model"
            raise ModelError(family, why, "correct the family") from error

    @property
    def is_outdated(self) -> bool:
        """Whether a kernel has failed after it was bound, so that all ops must be bound anew."""
        return self.binder.is_outdated or (self._host_binder is not None and self._host_binder.is_outdated)

    def _host_emitter(self) -> Emitter | None:
        if self._host is None or self._host_binder is None:
            return None
        self._host.prepare(self._program)
        operands = Operands(self._program, self._model, self._graph, of_host=True)
        return Emitter(operands, self._forms, self._host_binder, None)

    def buffer(self, name: str) -> int:
        """Return the buffer of a value's float32 rows."""
        return self._operands.buffer(name)

    def _require_sound(self, family: str) -> None:
        """Raise ModelError for an unknown op, a value that is read before it is written, and heads that are wrong."""
        written, sizes = set(self._graph.inputs), self._model.config.cache_heads
        for op in self._graph.ops:
            if not isinstance(op, Op):
                raise ModelError(family, f"its graph has {op!r}, which backend native does not run", "use another one")
            why = next((f"reads {name!r} before an op writes it" for name in reads(op) if name not in written), "")
            if isinstance(op, Attention) and _heads_of(op) != sizes:
                why = f"has {op!r}, the cache has {heads_text(**sizes)}"
            if isinstance(op, Rope) and min(op.heads, op.kv_heads) < 1:
                why = f"has {op!r}, which turns no heads"
            if why:
                raise ModelError(family, f"its graph {why}", "correct the family")
            written.add(writes(op))
        if self._graph.logits not in written:
            raise ModelError(family, "its graph writes no logits", "correct the family")

    def _add(self, index: int, op: Op) -> None:
        match op:
            case Embed():
                self._embed(index, op)
            case RmsNorm():
                self._rmsnorm(index, op)
            case LayerNorm() | RowOp():
                self._row_op(index, op.as_row_op() if isinstance(op, LayerNorm) else op)
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
                self._experts.route(op)
            case ExpertLinear():
                self._experts.linear(index, op)
            case Combine():
                self._experts.combine(index, op)

    def _embed(self, index: int, op: Embed) -> None:
        weight = self._operands.weight(op.weight)
        problem = {"weight": weight.format, "n": weight.panels * 16, "k": weight.k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            self._program.embed(kernels, weight, self.buffer(op.out) if out is None else out, module=op.weight)

        detail = described(op.weight, weight)
        if self._adapters is None:
            self._emitter.emit(index, "embed", detail, problem, [], op.out, emit, can_fuse=False)
            return
        # Later ops read the rows after the adapters' products are added, in place.
        emit_alone = self.binder.choose("embed", False, problem)
        self.binder.note("embed", detail, emit_alone)
        out = self.buffer(op.out)
        emit(emit_alone, out, [])
        _, roundings = self._forms.of(index, op.out)
        rounded = self._operands.quantized(op.out, roundings)
        self.binder.note_fused("embed", detail, False, problem, ["lora", *(name for name, _ in rounded)], 0)
        columns = panel_columns(weight.k)
        slot = self._program.embedding_slot(vocabulary=weight.n, panels=columns // PANEL)
        self._emitter.epilogue(detail, out, columns, out, [("lora", _native.Epilogue.lora(slot))])
        for step in rounded:
            self._emitter.epilogue(detail, out, columns, None, [step])

    def _rmsnorm(self, index: int, op: RmsNorm) -> None:
        detail, problem, add = self._norm(op)
        sampled, x = self._graph.values[op.out].sampled, self._graph.values[op.x].sampled
        if op.heads:
            kernels = self.binder.choose("rmsnorm", sampled, {**problem, "needs": [*problem["needs"], "norm_heads"]})
            self.binder.note("rmsnorm", detail, kernels)
            add(kernels, self.buffer(op.x), heads=op.heads, column=op.column)
            return
        gather = sampled and not x
        problem["needs"] += ["row_gather"] if gather else []
        self._emitter.emit(index, "rmsnorm", detail, problem, [], op.out, partial(add, gather_samples=gather))

    def _norm(self, op: RmsNorm) -> tuple[str, dict[str, Any], Callable[..., None]]:
        """Return a norm's name in lists of kernels, its problem, and what adds it to the program."""
        vector = self._model.vectors[op.weight] if op.weight else None
        size = (op.size or self._graph.values[op.x].columns) if vector is None else len(vector)
        needs = ["norm_offset"] * bool(op.offset) + ["norm_plain"] * (vector is None)

        def add(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue] = (), **more: Any) -> None:
            more |= {"module": op.weight, "offset": op.offset, "size": size}
            self._program.rmsnorm(kernels, self.buffer(op.x), vector, op.eps, out, epilogues, **more)

        return f"{role(op.weight or op.out)} {size}", {"n": size, "k": size, "needs": needs}, add

    def _row_op(self, index: int, op: RowOp) -> None:
        found = arguments_of(op, self.binder.operands(op.op), self._operands)
        gather = self._graph.values[op.out].sampled and not self._graph.values[op.x].sampled

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            more: dict[str, Any] = {"operands": found.operands, "gather_samples": gather}
            self._program.row_op(op.op, kernels, found.columns, out, epilogues, **more)

        problem = {**found.problem, "needs": ["row_gather"] if gather else []}
        steps = [self._operands.step(step) for step in op.steps]
        self._emitter.emit(index, op.op, found.detail, problem, steps, op.out, emit, found.columns)

    def _is_before_head(self, op: RmsNorm | LayerNorm | RowOp) -> bool:
        heads = [one for one in self._graph.ops if isinstance(one, Linear) and one.out == self._graph.logits]
        return bool(heads) and heads[-1].x == op.out and not self._graph.values[op.x].sampled

    def _add_hidden(self, op: RmsNorm | LayerNorm | RowOp) -> None:
        """Add the final norm once more, over all rows and only in steps that ask for it."""
        self.hidden = self._program.buffer(self._graph.values[op.out].columns)
        if isinstance(op, RmsNorm):
            detail, problem, add = self._norm(op)
            kernels = self.binder.choose("rmsnorm", False, problem)
            self.binder.note("rmsnorm", f"{detail} of all rows", kernels, is_listed=False)
            add(kernels, self.hidden, on_demand=True)
            return
        op = op.as_row_op() if isinstance(op, LayerNorm) else op
        found = arguments_of(op, self.binder.operands(op.op), self._operands)
        kernels = self.binder.choose(op.op, False, found.problem)
        self.binder.note(op.op, f"{found.detail} of all rows", kernels, is_listed=False)
        self._program.row_op(op.op, kernels, found.columns, self.hidden, operands=found.operands, on_demand=True)

    def _linear(self, index: int, op: Linear) -> None:
        weight = self._operands.weight(op.weight)
        act = self._model.tensors[op.weight].quant.activation
        x = self._operands.rows(op.x, self._forms.rounding(op.weight) if self._forms.is_int8(op.weight) else None)
        problem = {"weight": weight.format, "act": act, "n": weight.panels * 16, "k": weight.k}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            self._program.linear(kernels, weight, x, out, epilogues, module="lm_head" if is_head else "")

        # Adapters use this name of the head even where it is tied to the embeddings.
        is_head = op.out == self._graph.logits
        lora = self._emitter.shrink(op, "lm_head" if is_head else op.weight, weight, weight.panels)
        steps = [*lora, *(self._operands.step(step) for step in op.steps)]
        self._emitter.emit(
            index, "linear", described(op.weight, weight), problem, steps, op.out, emit, weight.panels * 16
        )

    def _apply(self, index: int, op: Apply) -> None:
        steps = [self._operands.step(step) for step in op.steps]
        needs_f32, roundings = self._forms.of(index, op.out)
        steps += self._operands.quantized(op.out, roundings)
        value = self._graph.values[op.x]
        out = self.buffer(op.out) if needs_f32 else None
        self._emitter.epilogue(op.out, self.buffer(op.x), value.columns, out, steps, value.sampled)

    def _rope(self, op: Rope) -> None:
        if op.rope not in self._tables:
            context = self._limits.context
            self._tables[op.rope] = (*rope.tables(op.rope, op.head_dim, context), rope.query_scale(op.rope, context))
        cos, sin, q_scale = self._tables[op.rope]
        heads: dict[str, Any] = {"heads": op.heads, "kv_heads": op.kv_heads, "head_dim": op.head_dim}
        needs = (["rope_norm"] if op.q_norm or op.k_norm else []) + (["rope_scale"] if q_scale is not None else [])
        kernels = self.binder.choose("rope", False, {"context": self._limits.context, "needs": needs, **heads})
        self.binder.note("rope", heads_text(**heads), kernels)
        norms = [self._model.vectors[name] + np.float32(op.offset) if name else None for name in (op.q_norm, op.k_norm)]
        more: dict[str, Any] = {"q_norm": norms[0], "k_norm": norms[1], "q_scale": q_scale, "eps": op.eps}
        if norms[0] is not None and norms[1] is not None:
            module = more["module"] = f"{op.q_norm}, {op.k_norm}"
            self.head_norms[module] = HeadNorms((op.q_norm, op.k_norm), (norms[0], norms[1]), op.offset)
        self._program.rope(kernels, self.buffer(op.x), **heads, k_column=op.k_column, cos=cos, sin=sin, **more)

    def _kv_append(self, op: KvAppend) -> None:
        heads = self._model.config.cache_heads
        problem = {"kv": self._kv_format, "context": self._limits.context, **heads}
        kernels = self.binder.choose("kv_append", False, problem)
        self.binder.note("kv_append", f"{self._kv_format} {heads_text(**heads)}", kernels)
        x, (table, place) = self.buffer(op.x), self._places[op.layer]
        self._program.kv_append(kernels, x, self._cache, place, k_column=op.k_column, v_column=op.v_column, table=table)

    def _attention(self, index: int, op: Attention) -> None:
        needs = [need for name, need in ATTENTION_NEEDS.items() if getattr(op, name)]
        heads = {"heads": op.heads, **_heads_of(op)}
        problem = {"kv": self._kv_format, "context": self._limits.context, "needs": needs, **heads}
        x, (table, place) = self.buffer(op.x), self._places[op.layer]
        more: dict[str, Any] = {"heads": op.heads, "window": op.window, "scale": op.scale, "softcap": op.softcap}
        more |= {"sinks": self._model.vectors[op.sinks] if op.sinks else None, "table": table}
        more |= {"slopes": np.array(op.slopes, np.float32)} if op.slopes else {}

        def emit(kernels: Bindings, out: int | None, epilogues: Sequence[_native.Epilogue]) -> None:
            out = self.buffer(op.out) if out is None else out
            self._program.attention(kernels, x, self._cache, place, out, epilogues=epilogues, **more)

        self._emitter.emit(index, "attention", f"{self._kv_format} {heads_text(**heads)}", problem, [], op.out, emit)


def _heads_of(op: Attention) -> dict[str, int]:
    """Return what an attention takes the cache's heads for, as ``ModelConfig.cache_heads`` has them."""
    return {"kv_heads": op.kv_heads, "head_dim": op.head_dim, "v_head_dim": op.v_head_dim or op.head_dim}


def heads_text(kv_heads: int, head_dim: int, v_head_dim: int = 0, heads: int = 0) -> str:
    """Return heads and their sizes in words: ``32/4 heads of 64``, ``4 heads of 64 and 48`` where those of v differ."""
    count = f"{heads}/{kv_heads}" if heads else f"{kv_heads}"
    return f"{count} heads of {head_dim}" + (f" and {v_head_dim}" if v_head_dim not in (0, head_dim) else "")
