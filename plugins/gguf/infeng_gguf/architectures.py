"""The mapping of GGUF architectures to Hugging Face's: names of tensors and keys, and the exporter's changes.

Each architecture is a row of data. The exporter is llama.cpp's ``convert_hf_to_gguf.py``; names of tensors are those of
``gguf-py/gguf/tensor_mapping.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_BOTH_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **_POST_NORMS}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_PLAIN_MLP = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_ATTENTION = {here: there for here, there in _LINEARS.items() if here.startswith("attn_")}
_SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_WHOLE = {theirs: ours for ours, theirs in _WHOLE.items()}


@dataclass(frozen=True)
class Architecture:
    """The mapping of one ``general.architecture`` to a family."""

    name: str
    family: str  # ``model_type`` of config.json
    model_class: str  # in ``architectures`` of config.json
    blocks: Mapping[str, str] = field(default_factory=lambda: _LINEARS | _NORMS)  # a layer's tensors, GGUF -> HF
    keys: Mapping[str, str] = field(default_factory=dict)  # further keys, config.json -> metadata
    needed: tuple[str, ...] = ()  # required integer keys of the metadata
    ignored: tuple[str, ...] = ()  # keys of the metadata that follow from others
    usual: Mapping[str, Any] = field(default_factory=dict)  # keys with the only value that has no effect
    parameters: Mapping[str, str] = field(default_factory=dict)  # a layer's tensors that are no module weight in HF
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}  # further entries of config.json
    interleaved: bool = False  # rows of q and k: pairs that are rotated together are adjacent
    norm_offset: float = 0.0  # added by the exporter to the weights of norms
    rope_factors: Literal["", "llama3", "longrope"] = ""  # kind of tensors with divisors of the rotary frequencies
    yarn: Mapping[str, Any] = field(default_factory=dict)  # entries of rope_scaling for yarn that have no key
    epsilon: tuple[str, str] = ("rms_norm_eps", "attention.layer_norm_rms_epsilon")  # of norms: config.json, metadata
    is_written: bool = False  # whether models of the family can be exported

    def theirs(self, name: str) -> str | None:
        """Return the checkpoint name of a tensor such as ``blk.0.attn_q.weight``; None if it has none."""
        found = re.fullmatch(r"(?:blk\.(?P<layer>0|[1-9]\d{0,4})\.)?(?P<stem>[\w-]+)\.(?P<kind>weight|bias)", name)
        if found is None:
            return None
        if found["layer"] is None:
            stem = _WHOLE.get(found["stem"])
            return None if stem is None else f"{stem}.{found['kind']}"
        layer, stem = f"model.layers.{int(found['layer'])}", self.blocks.get(found["stem"])
        if stem is None:
            parameter = self.parameters.get(f"{found['stem']}.{found['kind']}")
            return None if parameter is None else f"{layer}.{parameter}"
        return f"{layer}.{stem}.{found['kind']}"

    def ours(self, name: str) -> str:
        """Return the GGUF name of a checkpoint's tensor such as ``model.layers.0.self_attn.q_proj.weight``.

        Raises KeyError if it has none.
        """
        stem, _, kind = name.rpartition(".")
        if stem in _OF_WHOLE:
            return f"{_OF_WHOLE[stem]}.{kind}"
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if found is None:
            raise KeyError(name)
        held = {f"{there}.{kind}": f"{here}.{kind}" for here, there in self.blocks.items()}
        held |= {there: here for here, there in self.parameters.items()}
        return f"blk.{found[1]}.{held[found[2]]}"

    def rotary_heads(self, name: str, heads: int, kv_heads: int) -> int:
        """Return the number of heads in a checkpoint's tensor whose rows are stored interleaved; 0 for others."""
        if not self.interleaved:
            return 0
        if ".self_attn.q_proj." in name:
            return heads
        return kv_heads if ".self_attn.k_proj." in name else 0


def _gemma(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scale of scores; as in llama.cpp, the published 27B models (46 and 62 layers) use another width."""
    is_large = config["num_hidden_layers"] in (46, 62)
    width = config["hidden_size"] // config["num_attention_heads"] if is_large else config["head_dim"]
    return {"query_pre_attn_scalar": width}


def _gemma3(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same, and the file's window or None, since config.json has a window by default."""
    return {**_gemma(config), "sliding_window": config.get("sliding_window")}


def _experts(config: Mapping[str, Any], *, share_of_chosen: bool) -> Mapping[str, Any]:
    """Return the experts' width, computed as in llama.cpp for older files, and the normalization of router weights."""
    width = config.get("moe_intermediate_size") or config["intermediate_size"] // max(1, config["num_experts_per_tok"])
    return {"moe_intermediate_size": width, "norm_topk_prob": share_of_chosen}


def _qwen2_moe(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same, and the width of the shared expert."""
    shared = config.get("shared_expert_intermediate_size", config["intermediate_size"])
    return {**_experts(config, share_of_chosen=False), "shared_expert_intermediate_size": shared}


def _gpt_oss(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return attention biases, and plain rope as the default, since config.json has scaled rope by default."""
    return {"attention_bias": True, "rope_scaling": {"rope_type": "default"}}


_WINDOW = {"sliding_window": "attention.sliding_window"}
_GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_COUNTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_LOCAL_COUNTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_WIDTH = {"moe_intermediate_size": "expert_feed_forward_length"}
_SHARED_WIDTH = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
_SHARES = ("expert_weights_norm",)  # llama.cpp ignores it and normalizes over the chosen experts
_LAST_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", **_LAST_CAP}

_ALL = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True, rope_factors="llama3", is_written=True),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", is_written=True),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", _LINEARS | _NORMS | _QK_NORMS, is_written=True),
    Architecture("smollm3", "smollm3", "SmolLM3ForCausalLM", interleaved=True),
    Architecture("granite", "granite", "GraniteForCausalLM", keys=_GRANITE, interleaved=True),
    Architecture(
        "starcoder2",
        "starcoder2",
        "Starcoder2ForCausalLM",
        _ATTENTION | _PLAIN_MLP | _NORMS,
        keys=_WINDOW,
        epsilon=("norm_epsilon", "attention.layer_norm_epsilon"),
    ),
    Architecture("olmo2", "olmo2", "Olmo2ForCausalLM", _LINEARS | _POST_NORMS | _QK_NORMS),
    Architecture(
        "phi3",
        "phi3",
        "Phi3ForCausalLM",
        _FUSED | _NORMS,
        keys=_WINDOW,
        ignored=("rope.scaling.attn_factor",),
        rope_factors="longrope",
    ),
    Architecture(
        "gemma2",
        "gemma2",
        "Gemma2ForCausalLM",
        _LINEARS | _BOTH_NORMS,
        keys=_WINDOW | _CAPS,
        derived=_gemma,
        norm_offset=1.0,
    ),
    Architecture(
        "gemma3",
        "gemma3_text",
        "Gemma3ForCausalLM",
        _LINEARS | _BOTH_NORMS | _QK_NORMS,
        keys=_WINDOW | _LAST_CAP | {"rope_local_base_freq": "rope.freq_base_swa"},
        derived=_gemma3,
        norm_offset=1.0,
    ),
    Architecture(
        "qwen2moe",
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        _ATTENTION | _NORMS | _SHARED | {"ffn_gate_inp": "mlp.gate"},
        keys=_COUNTS | _WIDTH | _SHARED_WIDTH,
        derived=_qwen2_moe,
    ),
    Architecture(
        "qwen3moe",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _ATTENTION | _NORMS | _QK_NORMS | {"ffn_gate_inp": "mlp.gate"},
        keys=_COUNTS | _WIDTH,
        ignored=_SHARES,
        derived=partial(_experts, share_of_chosen=True),
    ),
    Architecture(
        "olmoe",
        "olmoe",
        "OlmoeForCausalLM",
        _ATTENTION | _NORMS | _QK_NORMS | {"ffn_gate_inp": "mlp.gate"},
        keys=_COUNTS,
        derived=lambda config: {"norm_topk_prob": False},
    ),
    Architecture(
        "granitemoe",
        "granitemoe",
        "GraniteMoeForCausalLM",
        _ATTENTION | _NORMS | {"ffn_gate_inp": "block_sparse_moe.router.layer"},
        keys=_GRANITE | _LOCAL_COUNTS,
        ignored=_SHARES,
        interleaved=True,
    ),
    Architecture(
        "gpt-oss",
        "gpt_oss",
        "GptOssForCausalLM",
        _ATTENTION
        | {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
        | {"ffn_gate_inp": "mlp.router"},
        keys=_LOCAL_COUNTS | _WINDOW | {"intermediate_size": "expert_feed_forward_length"},
        derived=_gpt_oss,
        needed=("attention.sliding_window",),
        usual={"attention.sliding_window_pattern": 2},
        parameters={"attn_sinks.weight": "self_attn.sinks"},
        yarn={"truncate": False},
    ),
)
_MIXTRAL = Architecture(
    "llama",
    "mixtral",
    "MixtralForCausalLM",
    _ATTENTION | _NORMS | {"ffn_gate_inp": "block_sparse_moe.gate"},
    keys=_LOCAL_COUNTS,
    ignored=_SHARES,
    interleaved=True,
)
ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}
WITH_EXPERTS = {architecture.name: architecture for architecture in (_MIXTRAL,)}
"""The architecture of a name if the metadata has a number of experts."""
BY_FAMILY = {architecture.family: architecture for architecture in (*_ALL, _MIXTRAL)}
