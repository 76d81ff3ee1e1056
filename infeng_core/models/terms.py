"""Keys of config.json that change what a model computes, in one family or another.

A family reads those that it runs. One that is set and that nobody has read is an error that names it, so that no model
is run as if it were another; all other unread keys are a debug line.
"""

from __future__ import annotations

from typing import Any

from infeng_core.log import get_logger
from infeng_core.models.fields import Fields, show

OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", (), [])
ONE = (*OFF, 1, 1.0)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            # attention
            "alibi",
            "attention_chunk_size",
            "dual_chunk_attention_config",
            "attn_logit_softcapping",
            "clip_qkv",
            "layer_types",
            "no_rope_layers",
            "query_pre_attn_scalar",
            "qk_layernorm",
            "sliding_window",
            "use_bidirectional_attention",
            "use_qk_norm",
            "use_sliding_window",
            # blocks
            "first_k_dense_replace",
            "kv_lora_rank",
            "moe_intermediate_size",
            "n_routed_experts",
            "num_experts",
            "num_local_experts",
            "n_shared_experts",
            "parallel_attn",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "swiglu_alpha",
            "swiglu_limit",
            "use_mrope",
            "use_parallel_residual",
            # ends
            "dim_model_base",
            "final_logit_softcapping",
            "lm_head_bias",
            # rope
            "rope_interleave",
            "rope_local_base_freq",
            "rope_ratio",
        ),
        OFF,
    ),
    **dict.fromkeys(
        (
            "attention_multiplier",
            "embedding_multiplier",
            "logit_scale",
            "logits_scaling",
            "residual_multiplier",
            "rotary_emb_fraction",
            "rotary_pct",
            "scale_depth",
            "scale_emb",
        ),
        ONE,
    ),
}
"""Each key's values that change nothing. A list changes nothing if all of its items are these or FULL."""

FULL = "full_attention"


def refuse_unread(fields: Fields, family: str) -> None:
    """Raise ModelError for a key that changes results and that nobody has asked for."""
    unread = sorted(str(key) for key in fields.data if key not in fields.asked)
    for key in unread:
        value = fields.data[key]
        items = value if isinstance(value, list) and value else [value]
        if key in NEUTRAL and not all(item == FULL or item in NEUTRAL[key] for item in items):
            why = f"is {show(value)}, which family {family} does not run"
            fields.fail(key, why, "use a model of a supported family")
    if unread:
        get_logger(__name__).debug("keys of config.json that nothing reads", keys=unread)


def windows(fields: Fields, layers: int, *, pattern: int = 1) -> tuple[int, ...]:
    """Return the attention window of each layer, 0 where it sees all; () where no layer has one.

    ``layer_types`` says which layers have one; without it every ``pattern``-th sees all, and with 1 none does.
    """
    kinds = layer_types(fields, layers)
    if not fields.has("sliding_window"):
        return ()
    size = fields.integer("sliding_window", 1, 1 << 28)
    if kinds is None:
        kinds = tuple(FULL if pattern > 1 and (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers))
    found = tuple(0 if kind == FULL else size for kind in kinds)
    return found if any(found) else ()


def experts(fields: Fields, *, count: str, inner: str) -> dict[str, Any]:
    """Return how many experts a layer has, by key ``count``, how wide each is, and how many a row goes to."""
    found = fields.integer(count, 1, 4096)
    return {
        "experts": found,
        "experts_per_token": fields.integer("num_experts_per_tok", 1, min(found, 64)),
        "expert_intermediate": fields.integer(inner, 1, 1 << 20),
    }


def layer_types(fields: Fields, layers: int) -> tuple[str, ...] | None:
    """Return what kind of attention each layer has; None where the file does not say."""
    if not fields.has("layer_types"):
        return None
    kinds = fields.data["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers:
        fields.fail("layer_types", f"is {show(kinds)}, it must be a list of {layers} names")
    for kind in kinds:
        if kind not in (FULL, "sliding_attention"):
            fields.fail("layer_types", f"has {show(kind)}, which this version does not run", "use another model")
    return tuple(kinds)
