"""The graph of a decoder-only transformer, made from its configuration and the vectors in its checkpoint.

A block is ``x += scale * post_norm(attention(pre_norm(x)))`` and the same with the feed-forward layer. The family's
layout (``models.weights``) says which of the norms there are, whether q and k are normed per head or over all heads,
and which linears have biases. The configuration has everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from infeng_core.models.ops import (
    Activate,
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    Graph,
    KvAppend,
    LayerNorm,
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
    Value,
    panel_columns,
)
from infeng_core.models.weights import layout

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig


def graph(config: ModelConfig, *, norm_offset: float = 0.0) -> Graph:
    """Return the forward pass of a model of this shape; ``norm_offset`` is added to the weights of all norms.

    Weights are named as ``models.weights`` packs them: q, k and v are one tensor in which each part starts on a panel,
    gate and up are one tensor whose panels alternate.
    """
    return _Decoder(config, norm_offset).graph()


class _Decoder:
    def __init__(self, config: ModelConfig, norm_offset: float) -> None:
        self.config = config
        self.offset = norm_offset
        self.vectors = {vector.name: vector.size for vector in layout(config).vectors}
        self.tensors = {tensor.name for tensor in layout(config).tensors}
        self.k_column = panel_columns(config.heads * config.head_dim)
        self.v_column = self.k_column + panel_columns(config.kv_heads * config.head_dim)
        self.v_head_dim = config.cache_heads["v_head_dim"]

    def graph(self) -> Graph:
        config, hidden = self.config, panel_columns(self.config.hidden)
        values = {
            "hidden": Value(hidden),  # the residual stream
            "normed": Value(hidden),
            "qkv": Value(self.v_column + panel_columns(config.kv_heads * self.v_head_dim)),
            "attended": Value(panel_columns(config.heads * self.v_head_dim)),
            "gated": Value(panel_columns(config.intermediate)),
            "sampled": Value(hidden, sampled=True),
            "logits": Value(panel_columns(config.vocab), sampled=True),
        }
        if config.experts:
            copies = config.experts_per_token
            values["router"] = Value(panel_columns(config.experts))  # the score of each expert
            values["routed"] = Value(hidden, copies=copies)
            values["expert_gated"] = Value(panel_columns(config.expert_intermediate), copies=copies)
            values["expert_out"] = Value(hidden, copies=copies)
        if config.shared_intermediate:
            values["shared_gated"] = Value(panel_columns(config.shared_intermediate))
            values["shared"] = Value(hidden)
            values["shared_gate"] = Value(panel_columns(1))
        if any(name.endswith("_post_norm") for name in self.vectors):
            values["update"] = Value(hidden)  # a block's output, before its post-norm
        ops: list[Op] = [Embed("embed", "hidden")]
        if config.embedding_scale != 1.0:
            ops.append(Apply("hidden", "hidden", (Scale(config.embedding_scale),)))
        for layer in range(config.layers):
            ops += self._attention(layer, f"layers.{layer}")
            ops += (self._experts if config.has_experts(layer) else self._feed_forward)(f"layers.{layer}")
        head = "embed" if config.tie_embeddings else "lm_head"
        ends: tuple[Step, ...] = () if config.logit_scale == 1.0 else (Scale(config.logit_scale),)
        ends += (Softcap(config.logit_softcap),) if config.logit_softcap else ()
        ops += [self._norm("norm", "hidden", "sampled"), Linear(head, "sampled", "logits", ends)]
        return Graph(values, tuple(ops), "logits")

    def _attention(self, layer: int, name: str) -> list[Op]:
        config = self.config
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        return [
            *self._before(f"{name}.attn_norm"),
            Linear(f"{name}.qkv_proj", self._input(f"{name}.attn_norm"), "qkv", self._bias(f"{name}.qkv_proj")),
            *self._positions(layer, name),
            KvAppend("qkv", layer, self.k_column, self.v_column),
            Attention(
                "qkv",
                "attended",
                layer,
                heads,
                kv_heads,
                head_dim,
                scale=config.score_scale,
                window=config.window(layer),
                softcap=config.attention_softcap,
                sinks=f"{name}.sinks" if f"{name}.sinks" in self.vectors else "",
                v_head_dim=config.v_head_dim,
            ),
            *self._after(f"{name}.o_proj", "attended", f"{name}.attn_post_norm"),
        ]

    @property
    def _gate(self) -> Step:
        config = self.config
        if config.activation == "silu":
            return SiluMul()
        return GatedMul(config.activation, config.gate_slope, config.gate_limit)

    def _experts(self, name: str) -> list[Op]:
        config, x = self.config, self._input(f"{name}.mlp_norm")
        first, last = f"{name}.experts.gate_up_proj", f"{name}.experts.down_proj"
        sizes = (config.experts, config.experts_per_token)
        shared = ("shared", "shared_gate") if config.shared_intermediate else ()
        return [
            *self._before(f"{name}.mlp_norm"),
            Linear(f"{name}.router", x, "router", self._bias(f"{name}.router")),
            *self._shared_expert(name, x),
            Route("router", x, "routed", first, *sizes, config.share_of_chosen),
            ExpertLinear(first, "routed", "expert_gated", (*self._bias(first), self._gate)),
            ExpertLinear(last, "expert_gated", "expert_out", self._bias(last)),
            *self._add(f"{name}.mlp_post_norm", lambda out, steps: Combine("expert_out", out, steps, *shared)),
        ]

    def _shared_expert(self, name: str, x: str) -> list[Op]:
        if not self.config.shared_intermediate:
            return []
        return [
            Linear(f"{name}.shared.gate_up_proj", x, "shared_gated", (self._gate,)),
            Linear(f"{name}.shared.down_proj", "shared_gated", "shared"),
            Linear(f"{name}.shared_gate", x, "shared_gate"),
        ]

    def _feed_forward(self, name: str) -> list[Op]:
        first, step = f"{name}.gate_up_proj", self._gate
        if f"{name}.up_proj" in self.tensors:  # an MLP without a gate
            first, step = f"{name}.up_proj", Activate(self.config.activation)
        return [
            *self._before(f"{name}.mlp_norm"),
            Linear(first, self._input(f"{name}.mlp_norm"), "gated", (*self._bias(first), step)),
            *self._after(f"{name}.down_proj", "gated", f"{name}.mlp_post_norm"),
        ]

    def _positions(self, layer: int, name: str) -> list[Op]:
        """Return the ops on q and k of a layer before attention: norms and rotation."""
        config, rope = self.config, self.config.rope_of(layer)
        heads, kv_heads, head_dim, eps = config.heads, config.kv_heads, config.head_dim, config.rms_eps
        q_norm, k_norm = (f"{name}.{part}_norm" for part in "qk")
        is_normed = q_norm in self.vectors
        by_head = is_normed and self.vectors[q_norm] == self.vectors[k_norm] == head_dim
        if rope is not None and by_head:
            return [Rope("qkv", heads, kv_heads, head_dim, self.k_column, rope, q_norm, k_norm, eps, self.offset)]
        ops: list[Op] = []
        if is_normed:
            counts = (heads, kv_heads) if by_head else (1, 1)
            for norm, count, column in zip((q_norm, k_norm), counts, (0, self.k_column), strict=True):
                ops.append(RmsNorm(norm, "qkv", "qkv", eps, self.offset, count, column))
        if rope is not None:
            ops.append(Rope("qkv", heads, kv_heads, head_dim, self.k_column, rope))
        return ops

    def _before(self, norm: str) -> list[Op]:
        return [self._norm(norm, "hidden", "normed")] if norm in self.vectors else []

    def _input(self, norm: str) -> str:
        return "normed" if norm in self.vectors else "hidden"

    def _after(self, weight: str, x: str, post_norm: str) -> list[Op]:
        """Return the ops that end a block with a linear op and add it to the residual stream."""
        return self._add(post_norm, lambda out, steps: Linear(weight, x, out, (*self._bias(weight), *steps)))

    def _add(self, post_norm: str, last: Callable[[str, tuple[Step, ...]], Op]) -> list[Op]:
        """Return ``last(value, steps)``, the op that ends a block, and the ops that add it to the residual stream."""
        scale: tuple[Step, ...] = () if self.config.residual_scale == 1.0 else (Scale(self.config.residual_scale),)
        add = (*scale, Residual("hidden"))
        if post_norm not in self.vectors:
            return [last("hidden", add)]
        return [
            last("update", ()),
            self._norm(post_norm, "update", "normed"),
            Apply("normed", "hidden", add),
        ]

    def _norm(self, weight: str, x: str, out: str) -> RmsNorm | LayerNorm:
        if f"{weight}.bias" in self.vectors:
            return LayerNorm(weight, f"{weight}.bias", x, out, self.config.rms_eps)
        return RmsNorm(weight, x, out, self.config.rms_eps, self.offset)

    def _bias(self, weight: str) -> tuple[Step, ...]:
        return (Bias(f"{weight}.bias"),) if f"{weight}.bias" in self.vectors else ()
