"""The tensors of a model in memory, and the checkpoint's tensors from which they are made.

Packed tensors (16-row panels, docs/format.md) and f32 vectors, for layer i:

====================================  ======================================================================
``embed``                             (vocab, hidden); also the head when the embeddings are tied
``lm_head``                           (vocab, hidden); absent when tied
``layers.i.qkv_proj``                 q, k, v below each other, each starting on a panel boundary
``layers.i.o_proj``                   (hidden, heads * size of a head of v)
``layers.i.gate_up_proj``             panels alternate gate, up, gate, up ...
``layers.i.up_proj``                  (intermediate, hidden), in place of it in an MLP without a gate
``layers.i.down_proj``                (hidden, intermediate)
``layers.i.router``                   (experts, hidden), in a layer with experts; such a layer lacks the last two
``layers.i.experts.gate_up_proj``     the tensors of all experts, one after the other
``layers.i.experts.down_proj``        the same
``layers.i.shared.gate_up_proj``      of the expert that all rows go to; ``shared.down_proj`` the same
``layers.i.shared_gate``              (1, hidden)
``layers.i.attn_norm``, ``mlp_norm``  (hidden), norms of a block's input
``layers.i.attn_post_norm``           (hidden), norm of a block's output; ``mlp_post_norm`` the same
``layers.i.q_norm``, ``k_norm``       (head_dim), or over the width of all heads
``layers.i.sinks``                    (heads), a score without a value for each head
``norm``                              (hidden)
``<tensor>.bias``                     one value per column of the packed tensor, 0 on padding
``<norm>.bias``                       of a norm that is a LayerNorm
====================================  ======================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families

PANEL_ROWS = 16

# Buffers that old checkpoints store although config.json determines them.
IGNORED = re.compile(r"(rotary_emb\.inv_freq|\.attention\.(masked_)?bias)$")


@dataclass(frozen=True)
class Part:
    """Rows begin, begin + every, ... of a checkpoint's tensor with ``of`` rows, and their place in a packed tensor.

    Row r of them goes to column ``(first_panel + r // 16 * panel_step) * 16 + r % 16``.
    """

    source: str
    rows: int
    first_panel: int = 0
    panel_step: int = 1
    alternative: str | None = None  # another name under which a checkpoint may hold the same tensor
    begin: int = 0
    of: int = 0  # 0: no other rows
    stack: Part | None = None  # the same rows in a tensor of all experts, which some checkpoints have instead
    every: int = 1
    each: int = 0  # outputs of one expert, where the tensor is (experts, inputs, outputs) or (experts, outputs)

    @property
    def module(self) -> str:
        """The module of this weight, with the rows where several modules are packed together:
        "mlp.gate_up_proj[0:64]"."""
        name = self.source.removesuffix(".weight")
        return f"{name}[{self.begin}:{self.begin + self.rows}]" if self.of else name

    @property
    def source_rows(self) -> int:
        """Rows of the whole tensor."""
        return self.of or self.rows

    @property
    def span(self) -> slice:
        """The rows of the whole tensor that this part covers."""
        return slice(self.begin, self.begin + (self.rows - 1) * self.every + 1, self.every)

    def shape(self, k: int = 0) -> tuple[int, ...]:
        """Return the shape of the whole tensor: a matrix over ``k`` inputs, or with 0 a vector."""
        inputs = (k,) if k else ()
        return (self.source_rows // self.each, *inputs, self.each) if self.each else (self.source_rows, *inputs)

    @property
    def panels(self) -> int:
        """Panels that the part's rows fill; the last one may be partly filled."""
        return -(-self.rows // PANEL_ROWS)

    def columns(self) -> NDArray[np.int64]:
        """Return the column of each row, (rows,)."""
        row = np.arange(self.rows)
        return (self.first_panel + row // PANEL_ROWS * self.panel_step) * PANEL_ROWS + row % PANEL_ROWS


@dataclass(frozen=True)
class TensorSpec:
    """A packed tensor of ``panels`` panels over ``k`` inputs, made of one or more (rows, k) parts."""

    name: str
    k: int
    parts: tuple[Part, ...]
    experts: int = 0  # the panels belong to this many experts, an equal number to each

    @property
    def panels(self) -> int:
        """All panels, of all parts."""
        return sum(part.panels for part in self.parts)

    def each(self) -> tuple[TensorSpec, ...]:
        """Return the tensor of each expert, ``name[3]``; () if there are no experts."""
        return tuple(self._of(expert) for expert in range(self.experts))

    def _of(self, expert: int) -> TensorSpec:
        count, panels = len(self.parts) // self.experts, self.panels // self.experts
        own = self.parts[expert * count : (expert + 1) * count]
        moved = tuple(replace(part, first_panel=part.first_panel - expert * panels) for part in own)
        return TensorSpec(f"{self.name}[{expert}]", self.k, moved)

    @property
    def n(self) -> int:
        """Outputs: the rows of the only part, or every column where several parts are joined."""
        return self.parts[0].rows if len(self.parts) == 1 else self.panels * PANEL_ROWS


@dataclass(frozen=True)
class VectorSpec:
    """A vector of ``size`` f32 values, made of one or more (rows,) parts; columns without a part are 0."""

    name: str  # in artifacts, and for the ops that read it
    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Layout:
    """All tensors and vectors of a model, in the order in which a step reads them."""

    tensors: tuple[TensorSpec, ...]
    vectors: tuple[VectorSpec, ...]

    def sources(self) -> set[str]:
        """Return every name that the checkpoint may use."""
        parts = [part for tensor in self.tensors for part in tensor.parts]
        parts += [part for vector in self.vectors for part in vector.parts]
        parts += [part.stack for part in parts if part.stack is not None]
        return {name for part in parts for name in (part.source, part.alternative) if name}


def stacked(*sources: tuple[str, int]) -> tuple[Part, ...]:
    """Place (name, rows) below each other, each on a panel boundary; sources of one name are its rows in order."""
    parts: list[Part] = []
    for source, rows in sources:
        parts.append(_part(source, rows, parts, sources, sum(part.panels for part in parts), 1))
    return tuple(parts)


def alternating(*sources: tuple[str, int]) -> tuple[Part, ...]:
    """Place (name, rows) of equal rows so that their panels take turns; sources of one name are its rows in order."""
    parts: list[Part] = []
    for index, (source, rows) in enumerate(sources):
        parts.append(_part(source, rows, parts, sources, index, len(sources)))
    return tuple(parts)


def _part(
    source: str, rows: int, before: list[Part], sources: Sequence[tuple[str, int]], first_panel: int, panel_step: int
) -> Part:
    begin = sum(part.rows for part in before if part.source == source)
    of = sum(count for name, count in sources if name == source)
    return Part(source, rows, first_panel, panel_step, begin=begin, of=0 if of == rows else of)


@lru_cache(maxsize=16)
def layout(config: ModelConfig) -> Layout:
    """Return the tensors of a model: its family's ``weights(config)`` if it defines one, else ``decoder(config)``."""
    make = getattr(families()[config.family], "weights", decoder)
    made: Layout = make(config)
    return made


PRE_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
POST_NORMS = {"attn_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
BOTH_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm", **POST_NORMS}
"""The norms of a layer and their names in a checkpoint: of block inputs, of block outputs, or of both."""


def decoder(
    config: ModelConfig,
    *,
    qkv_bias: bool | None = None,
    o_bias: bool | None = None,
    norms: Mapping[str, str] = PRE_NORMS,
    qk_norm: Literal["", "head", "width"] = "",
    fused: bool = False,
    experts: ExpertNames | None = None,
    sinks: bool = False,
    layer_norm: bool = False,
    plain_mlp: tuple[str, str] | None = None,
) -> Layout:
    """Return the tensors of a Llama-like decoder, under the names that transformers gives them.

    ``qkv_bias`` and ``o_bias`` say which attention linears have biases; the default is ``config.attention_bias``.
    ``qk_norm``: q and k are normed, each head by itself or over all heads. ``fused``: the checkpoint has q, k and v
    in one tensor, and gate and up in one. ``experts``: the names of experts, for layers that have some. ``sinks``:
    each head has one. ``layer_norm``: norms have biases. ``plain_mlp``: the names of the two linears of an MLP without
    a gate.
    """
    qkv_bias = config.attention_bias if qkv_bias is None else qkv_bias
    o_bias = config.attention_bias if o_bias is None else o_bias
    hidden, embed, head = config.hidden, "model.embed_tokens.weight", "lm_head.weight"
    tied = head if config.tie_embeddings else None
    tensors = [TensorSpec("embed", hidden, (Part(embed, config.vocab, alternative=tied),))]
    vectors: list[VectorSpec] = []
    for layer in range(config.layers):
        vectors += _norms(config, layer, norms, qk_norm, layer_norm)
        if sinks:
            source = stacked((f"model.layers.{layer}.self_attn.sinks", config.heads))
            vectors.append(VectorSpec(f"layers.{layer}.sinks", config.heads, source))
        names = experts if config.has_experts(layer) else None
        for linear in _linears(config, layer, qkv_bias, o_bias, fused, names, plain_mlp):
            tensor = TensorSpec(linear.name, linear.k, linear.parts("weight"))
            tensors.append(tensor)
            if linear.bias:
                vectors.append(VectorSpec(f"{linear.name}.bias", tensor.panels * PANEL_ROWS, linear.parts("bias")))
        if names is not None:
            mixture = _experts(config, layer, names)
            tensors += mixture
            vectors += [_biases(tensor) for tensor in mixture if names.has_bias]
    vectors += _norm("norm", "model.norm", hidden, layer_norm)
    if not config.tie_embeddings:
        tensors.append(TensorSpec("lm_head", hidden, (Part(head, config.vocab),)))
    return Layout(tuple(tensors), tuple(vectors))


def _norm(name: str, source: str, size: int, has_bias: bool) -> list[VectorSpec]:
    found = [VectorSpec(name, size, stacked((f"{source}.weight", size)))]
    return [*found, VectorSpec(f"{name}.bias", size, stacked((f"{source}.bias", size)))] if has_bias else found


def _norms(config: ModelConfig, layer: int, norms: Mapping[str, str], qk_norm: str, has_bias: bool) -> list[VectorSpec]:
    """Return the norms of a layer."""
    hf, ours, found = f"model.layers.{layer}", f"layers.{layer}", []
    for name, source in norms.items():
        found += _norm(f"{ours}.{name}", f"{hf}.{source}", config.hidden, has_bias)
    for name, heads in (("q_norm", config.heads), ("k_norm", config.kv_heads)) if qk_norm else ():
        size = config.head_dim if qk_norm == "head" else heads * config.head_dim
        found.append(VectorSpec(f"{ours}.{name}", size, stacked((f"{hf}.self_attn.{name}.weight", size))))
    return found


class _Linear(NamedTuple):
    """A packed tensor, and the modules that it joins, each with its rows."""

    name: str
    k: int
    place: Callable[..., tuple[Part, ...]]  # stacked or alternating
    modules: tuple[tuple[str, int], ...]
    bias: bool

    def parts(self, of: str) -> tuple[Part, ...]:
        return self.place(*((f"{module}.{of}", rows) for module, rows in self.modules))


@dataclass(frozen=True)
class ExpertNames:
    """The checkpoint's names for the parts of a mixture of experts, after ``model.layers.i.``; {} is the expert.

    ``gate_up_stack`` is (experts, 2 * intermediate, hidden), gate above up for each expert, and ``down_stack``
    (experts, hidden, intermediate). A checkpoint may have them in place of one tensor per expert; if ``gate``, ``up``
    and ``down`` are "", it always does. ``has_bias``: the router has a bias, and each stack too, ``<stack>_bias``.
    ``is_turned``: matrices of the stacks are (inputs, outputs), and outputs of gate and up alternate.
    """

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj.weight"
    up: str = "mlp.experts.{}.up_proj.weight"
    down: str = "mlp.experts.{}.down_proj.weight"
    gate_up_stack: str = "mlp.experts.gate_up_proj"
    down_stack: str = "mlp.experts.down_proj"
    shared: str = "mlp.shared_expert"  # if ``config.shared_intermediate`` is not 0
    shared_gate: str = "mlp.shared_expert_gate"
    has_bias: bool = False
    is_turned: bool = False


def _experts(config: ModelConfig, layer: int, names: ExpertNames) -> list[TensorSpec]:
    """Return the packed tensors of all experts of a layer."""
    count, inner, hidden = config.experts, config.expert_intermediate, config.hidden
    theirs, ours = f"model.layers.{layer}", f"layers.{layer}.experts"

    def part(name: str, stack: str, expert: int, rows: int, index: int, of: int) -> Part:
        place, total = (expert * of * -(-rows // PANEL_ROWS) + index, of), count * of * rows
        whole = Part(f"{theirs}.{stack}", rows, *place, begin=(expert * of + index) * rows, of=total)
        if names.is_turned:
            whole = replace(whole, begin=expert * of * rows + index, every=of, each=of * rows)
        return Part(f"{theirs}.{name.format(expert)}", rows, *place, stack=whole) if name else whole

    gate_up = tuple(
        part(name, names.gate_up_stack, expert, inner, index, 2)
        for expert in range(count)
        for index, name in enumerate((names.gate, names.up))
    )
    down = tuple(part(names.down, names.down_stack, expert, hidden, 0, 1) for expert in range(count))
    return [
        TensorSpec(f"{ours}.gate_up_proj", hidden, gate_up, count),
        TensorSpec(f"{ours}.down_proj", inner, down, count),
    ]


def _biases(tensor: TensorSpec) -> VectorSpec:
    """Return the biases of all experts of a packed tensor that is made from a stack."""
    parts = tuple(replace(part, source=f"{part.source}_bias") for part in tensor.parts)
    return VectorSpec(f"{tensor.name}.bias", tensor.panels * PANEL_ROWS, parts)


def _linears(
    config: ModelConfig,
    layer: int,
    qkv_bias: bool,
    o_bias: bool,
    fused: bool,
    experts: ExpertNames | None,
    plain_mlp: tuple[str, str] | None,
) -> tuple[_Linear, ...]:
    """Return the linears of a layer, without the experts', in the order in which a step reads them."""
    attention, mlp, ours = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp", f"layers.{layer}"
    hidden, inner, bias = config.hidden, config.intermediate, config.mlp_bias
    v_head_dim = config.cache_heads["v_head_dim"]
    rows = (config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * v_head_dim)
    heads = ("qkv_proj",) * 3 if fused else ("q_proj", "k_proj", "v_proj")
    gates = ("gate_up_proj",) * 2 if fused else ("gate_proj", "up_proj")
    qkv = tuple((f"{attention}.{name}", rows) for name, rows in zip(heads, rows, strict=True))
    gate_up = tuple((f"{mlp}.{name}", inner) for name in gates)
    around: tuple[_Linear, ...] = (
        _Linear(f"{ours}.qkv_proj", hidden, stacked, qkv, qkv_bias),
        _Linear(f"{ours}.o_proj", config.heads * v_head_dim, stacked, ((f"{attention}.o_proj", hidden),), o_bias),
    )
    if experts is not None:
        router = ((f"model.layers.{layer}.{experts.router}", config.experts),)
        around += (_Linear(f"{ours}.router", hidden, stacked, router, experts.has_bias),)
        if not config.shared_intermediate:
            return around
        shared, gate = (f"model.layers.{layer}.{name}" for name in (experts.shared, experts.shared_gate))
        both = tuple((f"{shared}.{name}", config.shared_intermediate) for name in ("gate_proj", "up_proj"))
        down = ((f"{shared}.down_proj", hidden),)
        return (
            *around,
            _Linear(f"{ours}.shared.gate_up_proj", hidden, alternating, both, False),
            _Linear(f"{ours}.shared.down_proj", config.shared_intermediate, stacked, down, False),
            _Linear(f"{ours}.shared_gate", hidden, stacked, ((gate, 1),), False),
        )
    if plain_mlp is not None:
        first, last = (f"{mlp}.{name}" for name in plain_mlp)
        return (
            *around,
            _Linear(f"{ours}.up_proj", hidden, stacked, ((first, inner),), bias),
            _Linear(f"{ours}.down_proj", inner, stacked, ((last, hidden),), bias),
        )
    return (
        *around,
        _Linear(f"{ours}.gate_up_proj", hidden, alternating, gate_up, bias),
        _Linear(f"{ours}.down_proj", inner, stacked, ((f"{mlp}.down_proj", hidden),), bias),
    )
