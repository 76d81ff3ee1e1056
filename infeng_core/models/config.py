"""The sizes and constants of a model, and their strict reading from an engine-native manifest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infeng_core.models import bounds
from infeng_core.models.families import describe, families
from infeng_core.models.own_fields import Plain, read_own, written_own
from infeng_core.models.rope_config import RopeConfig
from infeng_core.models.typed_fields import Fields, show, written

__all__ = ["ModelConfig", "RopeConfig"]

GATES = ("gelu", "gelu_tanh", "silu", "swiglu")

CAPS = ("attention_softcap", "logit_softcap", "gate_slope", "gate_limit")
SCALES = ("embedding_scale", "residual_scale", "logit_scale")

AGAIN = "update infeng, or convert the model again with this version: infeng convert SOURCE DEST --force"


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer.

    The attention's inner width is ``heads * head_dim``, which need not equal ``hidden``. ``eos_ids`` end a text,
    ``bos_id`` starts one; both may be absent. A tuple over layers is () where it applies to no layer.
    """

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rms_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_embeddings: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    activation: str = "silu"  # of the gate, or of an MLP without one
    windows: tuple[int, ...] = ()  # (layers,) attention window in positions; 0: all
    unrotated: tuple[int, ...] = ()  # layers without rotary embedding
    local_rope: RopeConfig | None = None  # of layers with a window, if it differs
    attention_scale: float = 0.0  # of scores; 0: 1 / sqrt(head_dim)
    attention_softcap: float = 0.0  # of scores; 0: none
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # factor of a block's output before it is added to the residual stream
    logit_scale: float = 1.0
    experts: int = 0  # in each layer that has experts
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # width of an expert that all rows go to; 0: there is none
    share_of_chosen: bool = False  # weights are softmax shares among the chosen experts, not among all
    dense_layers: tuple[int, ...] = ()  # layers without experts, in a model that has some
    gate_slope: float = 0.0  # of activation swiglu: factor of the gate in the sigmoid
    gate_limit: float = 0.0  # bound of gate and up
    v_head_dim: int = 0  # elements of a head of v; 0: as many as of q and k
    own: Mapping[str, Plain] = field(default_factory=dict, hash=False)  # what only the family knows, all of it

    def __post_init__(self) -> None:
        """Complete ``own`` by the family's defaults; raises ModelError for a field that the family does not read."""
        object.__setattr__(self, "own", read_own(self.family, self.own, f"family {self.family}"))

    def has_experts(self, layer: int) -> bool:
        """Return whether the feed-forward part of a layer is a mixture of experts."""
        return self.experts > 0 and layer not in self.dense_layers

    def window(self, layer: int) -> int:
        """Return how many positions a row of a layer attends to, itself included; 0: all before it."""
        return self.windows[layer] if self.windows else 0

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Return the rotary embedding of a layer, or None."""
        if layer in self.unrotated:
            return None
        return self.local_rope if self.local_rope is not None and self.window(layer) else self.rope

    @property
    def cache_heads(self) -> dict[str, Any]:
        """What a cache must know of the heads: ``kv_heads``, ``head_dim``, and ``v_head_dim``, which is never 0."""
        return {"kv_heads": self.kv_heads, "head_dim": self.head_dim, "v_head_dim": self.v_head_dim or self.head_dim}

    @property
    def score_scale(self) -> float:
        """The factor of the products of q and k."""
        return self.attention_scale or 1.0 / math.sqrt(self.head_dim)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that ``from_dict`` reads back to an equal config."""
        own = written_own(self.family, self.own)
        found = {name: value for name, value in written(self).items() if name != "own"}
        return {**found, "own": own} if own else found

    @staticmethod
    def from_dict(data: object, source: Path | str) -> ModelConfig:
        """Read the result of ``to_dict``; ``source`` is the file that holds it. Raises ModelError.

        A field added after version 1.0 may be absent and takes its default. An unknown field may change what the
        model computes, and is refused.
        """
        fields = Fields(data, source, remedy=AGAIN, prefix="model.")
        fields.only(*(each.name for each in dataclasses.fields(ModelConfig)))
        family = fields.text("family")
        if family not in families():
            fields.fail(
                "family", f"is {show(family)}, supported are {describe()}", "update infeng or use another model"
            )
        vocab = fields.integer("vocab", 1, bounds.MAX_VOCAB)
        config = ModelConfig(
            family=family,
            hidden=fields.integer("hidden", 1, bounds.MAX_WIDTH),
            intermediate=fields.integer("intermediate", 1, bounds.MAX_WIDTH),
            layers=fields.integer("layers", 1, bounds.MAX_LAYERS),
            heads=fields.integer("heads", 1, bounds.MAX_HEADS),
            kv_heads=fields.integer("kv_heads", 1, bounds.MAX_HEADS),
            head_dim=fields.integer("head_dim", 1, bounds.MAX_HEAD_DIM),
            vocab=vocab,
            max_positions=fields.integer("max_positions", 1, bounds.MAX_POSITIONS),
            rms_eps=fields.number("rms_eps", 1e-12, 1.0),
            rope=RopeConfig.from_dict(fields.mapping("rope")),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            tie_embeddings=fields.flag("tie_embeddings"),
            bos_id=fields.optional_integer("bos_id", 0, vocab - 1),
            eos_ids=token_ids(fields, "eos_ids", vocab),
            own=read_own(family, fields.mapping("own").data if fields.has("own") else {}, source, AGAIN),
            **_later(fields),
        )
        check_sizes(config, fields, "heads", "kv_heads")
        return config


def _later(fields: Fields) -> dict[str, Any]:
    """Read the fields that were added after format 1.0."""
    activation = fields.text("activation", "silu")
    if activation not in GATES:
        fields.fail("activation", f"is {show(activation)}, known are {', '.join(GATES)}")
    local = fields.mapping("local_rope") if fields.has("local_rope") else None
    return {
        "activation": activation,
        "windows": fields.integers("windows", 0, bounds.MAX_POSITIONS),
        "unrotated": fields.integers("unrotated", 0, bounds.MAX_LAYERS),
        "local_rope": None if local is None else RopeConfig.from_dict(local),
        **{name: fields.number(name, 0.0, 1e6, 0.0) for name in ("attention_scale", *CAPS)},
        **{name: fields.number(name, 1e-6, 1e6, 1.0) for name in SCALES},
        "experts": fields.integer("experts", 0, bounds.MAX_EXPERTS, 0),
        "experts_per_token": fields.integer("experts_per_token", 0, bounds.MAX_CHOSEN, 0),
        "expert_intermediate": fields.integer("expert_intermediate", 0, bounds.MAX_WIDTH, 0),
        "shared_intermediate": fields.integer("shared_intermediate", 0, bounds.MAX_WIDTH, 0),
        "share_of_chosen": fields.flag("share_of_chosen", False),
        "dense_layers": fields.integers("dense_layers", 0, bounds.MAX_LAYERS),
        "v_head_dim": fields.integer("v_head_dim", 0, bounds.MAX_HEAD_DIM, 0),
    }


def token_ids(fields: Fields, key: str, vocab: int) -> tuple[int, ...]:
    """Return token ids given as one number, a list or null."""
    value = fields.data.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if len(ids) > 1024:
        fields.fail(key, f"lists {len(ids)} ids, it may list 1024")
    for item in ids:
        Fields({key: item}, fields.source, remedy=fields.remedy, prefix=fields.prefix).integer(key, 0, vocab - 1)
    return tuple(dict.fromkeys(ids))


def check_sizes(config: ModelConfig, fields: Fields, heads: str, kv_heads: str) -> None:
    """Raise ModelError if sizes that are valid alone do not fit each other."""
    if config.heads % config.kv_heads:
        fields.fail(heads, f"is {config.heads}, not a multiple of {kv_heads} = {config.kv_heads}")
    for rope in (config.rope, config.local_rope):
        rot = 2 if rope is None else rope.rotated(config.head_dim)
        if rot < 2 or rot % 2:
            fields.fail("head_dim", f"is {config.head_dim}, of which {rot} are rotated: it must be an even number")
        if rope is not None and ((rope.kind == "yarn" and rope.theta <= 1.0) or (rope.kind == "dynamic" and rot == 2)):
            fields.fail("rope_theta", f"is {rope.theta:g} over {rot} values, which {rope.kind} cannot scale")
        for factors in () if rope is None or rope.kind != "longrope" else (rope.short_factors, rope.long_factors):
            if len(factors) != rot // 2:
                fields.fail("rope", f"has {len(factors)} factors, {rot} rotated values need {rot // 2}")
    if config.windows and len(config.windows) != config.layers:
        fields.fail("windows", f"has {len(config.windows)} layers, the model has {config.layers}")
    if config.experts and not 1 <= config.experts_per_token <= config.experts:
        fields.fail("num_experts_per_tok", f"is {config.experts_per_token}, of {config.experts} experts")
    if config.layers * config.experts > bounds.MAX_ALL_EXPERTS:
        why = f"is {config.experts} in each of {config.layers} layers, there may be {bounds.MAX_ALL_EXPERTS} in all"
        fields.fail("num_experts", why)
    if config.experts and not config.expert_intermediate:
        fields.fail("expert_intermediate", "is 0, and the model has experts")
    if config.activation == "swiglu" and not (config.gate_slope and config.gate_limit):
        fields.fail("gate_limit", "or gate_slope is 0, and the gates are swiglu")
    if (width := config.heads * max(config.head_dim, config.v_head_dim)) > bounds.MAX_WIDTH:
        fields.fail(heads, f"times head_dim is {width}, it may be {bounds.MAX_WIDTH} at most")
