"""The sizes of a mixture of experts, as its packed weights have them."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_bench.models.model_shape import ModelShape

from infeng_core.api import UsageError
from infeng_core.api.formats import FormatLookup, layout


@dataclass(frozen=True)
class Mixture:
    """Sizes of a model. Multiply-adds are those of one row."""

    layers: int  # that have experts
    experts: int  # of a layer
    chosen: int  # by a row in a layer
    hidden: int
    expert_bytes: float
    expert_macs: float
    other_bytes: float  # weights that every step reads: all but the routed experts and the embedding
    other_macs: float


def mixture(shape: ModelShape, lookup: FormatLookup) -> Mixture:
    """Return the sizes of a model, in its formats; raises UsageError for one without experts."""
    config, tensors = shape.config, layout(shape.config).tensors
    nbytes = {one.name: one.panels * lookup(shape.formats[one.name]).panel_bytes(one.k) for one in tensors}
    macs = {one.name: one.panels * 16 * one.k for one in tensors}
    routed = {one.name for one in tensors if one.experts}
    others = {one.name for one in tensors} - routed - (set() if config.tie_embeddings else {"embed"})
    layers = sum(config.has_experts(index) for index in range(config.layers))
    if not layers:
        raise UsageError(shape.name, "has no experts", "name a mixture, such as qwen3-30b-a3b or gpt-oss-20b")
    each = layers * config.experts
    return Mixture(
        layers=layers,
        experts=config.experts,
        chosen=config.experts_per_token,
        hidden=config.hidden,
        expert_bytes=sum(nbytes[name] for name in routed) / each,
        expert_macs=sum(macs[name] for name in routed) / each,
        other_bytes=sum(nbytes[name] for name in others),
        other_macs=sum(macs[name] for name in others),
    )
