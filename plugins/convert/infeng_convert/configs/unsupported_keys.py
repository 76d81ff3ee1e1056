"""Keys of config.json that a family does not read, and the values at which they change nothing.

Three tables decide. A key of ``NEUTRAL`` with a value outside its list is an error that names the key, so that no
model is run as another; a family's ``STATES`` adds values that say what the family does in any case. A key of
``HARMLESS`` changes nothing, whatever its value. Any other key is unknown: if it is set, a warning names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from infeng_convert.configs.shared_keys import FULL
from infeng_core.api import get_logger
from infeng_core.api.formats import Fields, show

OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", (), [], {})
ON: tuple[Any, ...] = (None, True)
ONE = (*OFF, 1, 1.0)

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            # attention
            "alibi",
            "attention_chunk_size",
            "attention_k_eq_v",
            "attn_logit_softcapping",
            "attn_output_gate",
            "clip_qkv",
            "dual_chunk_attention_config",
            "full_attention_interval",
            "global_head_dim",
            "layer_types",
            "no_rope_layers",
            "num_global_key_value_heads",
            "num_kv_shared_layers",
            "q_lora_rank",
            "qk_layernorm",
            "qkv_bias",
            "query_pre_attn_scalar",
            "sliding_window",
            "use_bidirectional_attention",
            "use_qk_norm",
            "use_sliding_window",
            # blocks
            "add_cross_attention",
            "enable_moe_block",
            "first_k_dense_replace",
            "hidden_size_per_layer_input",
            "hybrid_override_pattern",
            "is_encoder_decoder",
            "kv_lora_rank",
            "layers_block_type",
            "mlp_only_layers",
            "mlp_type",
            "moe_intermediate_size",
            "n_routed_experts",
            "n_shared_experts",
            "norm_type",
            "num_experts",
            "num_local_experts",
            "parallel_attn",
            "pruned_heads",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "swiglu_alpha",
            "swiglu_limit",
            "tie_encoder_decoder",
            "use_double_wide_mlp",
            "use_mrope",
            "use_parallel_residual",
            # ends
            "dim_model_base",
            "final_logit_softcapping",
            "lm_head_bias",
            # rope
            "rope_interleave",
            "rope_interleaved",
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
    "is_causal": ON,
}
"""The values of each key that change nothing. A list changes nothing if all of its items are such values or FULL."""

HARMLESS = re.compile(
    r"_.*|architectures|torch_dtype|dtype|transformers_version|auto_map|model_type|use_cache|pretraining_tp|"
    r"initializer_.*|.*(dropout|_pdrop|dropout_prob)|.*aux_loss_coef|router_z_loss_coef|router_jitter_noise|"
    r"output_(router_logits|attentions|hidden_states|scores)|return_dict.*|gradient_checkpointing|chunk_size_.*|"
    r"(pad|sep|unk|mask|cls|decoder_start|image|video|audio|vision|boi|eoi).*_token_(id|index)|"
    r"(id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|tokenizer_class|prefix)|"
    r"(max|min)_(new_tokens|length)|do_sample|temperature|top_[kp]|typical_p|repetition_penalty|length_penalty|"
    r"no_repeat_ngram_size|num_beams|num_return_sequences|bad_words_ids|suppress_tokens|num_logits_to_keep|"
    r"cache_implementation|.*attn_implementation|use_flash_attn.*|experts_implementation|torchscript|use_bfloat16|"
    r"unsloth_.*|is_[a-z0-9]+_config|max_window_layers|initial_context_length|experts_per_token|norm_topk_prob|decoder_sparse_step|"
    r"no_rope_layer_interval|sliding_window_pattern|max_sequence_length|(rope_)?original_max_position_embeddings|"
    r"mtp_.*|num_nextn_predict_layers|vision_config|audio_config|(bos|eos)_token_id|is_decoder"
)
"""Keys about training, generation, tokens, storage and other programs' computation.

Some layout keys count only beside another key, which NEUTRAL lists.
"""


def refuse_unread(fields: Fields, family: str, states: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> None:
    """Raise ModelError for a key that changes results and that the family has not read.

    states: values of keys of NEUTRAL that say what the family does in any case; only they are then allowed.
    """
    for key in sorted(states.keys() & fields.data.keys() - fields.asked):
        value = fields.data[key]
        if value is not None and value not in states[key]:
            why = f"is {show(value)}, and models of family {family} are otherwise"
            fields.fail(key, why, "use a model as it was released")
    unread = [key for key in sorted(map(str, fields.data)) if key not in fields.asked and key not in states]
    for key in unread:
        if key in NEUTRAL and not all(item == FULL or item in NEUTRAL[key] for item in _items(fields.data[key])):
            why = f"is {show(fields.data[key])}, which family {family} does not run"
            fields.fail(key, why, "use a model of a supported family")
    strange = [key for key in unread if is_unknown(key, fields.data[key])]
    log = get_logger(__name__)
    if strange:
        more = {"others": len(strange) - 8} if len(strange) > 8 else {}
        log.warning(
            f"{fields.source}: keys that this version does not know are not read",
            keys=[*map(show, strange[:8])],
            **more,
        )
    if unread:
        log.debug("keys of config.json that nothing reads", keys=unread)


def is_unknown(key: str, value: object) -> bool:
    """Return whether a key that was not read is set and in no table."""
    return key not in NEUTRAL and HARMLESS.fullmatch(key) is None and value not in OFF


def _items(value: object) -> Iterator[object]:
    yield from value if isinstance(value, list) and value else [value]
