"""The architectures of GGUF as Hugging Face knows them: names of tensors and keys, and what the exporter changed.

Each is a row of data. The exporter is ``convert_hf_to_gguf.py`` of llama.cpp, the names of tensors those of
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
    """How one ``general.architecture`` maps to a family of ours."""

    name: str
    family: str  # ``model_type`` of config.json
    model_class: str  # of ``architectures`` there
    blocks: Mapping[str, str] = field(default_factory=lambda: _LINEARS | _NORMS)  # a layer's tensors here: there
    keys: Mapping[str, str] = field(default_factory=dict)  # keys of config.json: of the metadata, beyond the usual ones
    needed: tuple[str, ...] = ()  # keys of the metadata, whole numbers, without which it would be another model
    ignored: tuple[str, ...] = ()  # keys of the metadata that follow from others
    usual: Mapping[str, Any] = field(default_factory=dict)  # keys with the one value that changes nothing
    parameters: Mapping[str, str] = field(default_factory=dict)  # a layer's tensors that are no module's weight there
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}  # what config.json says besides
    interleaved: bool = False  # rows of q and k: pairs that are rotated together are neighbours
    norm_offset: float = 0.0  # what the exporter added to the weights of norms
    rope_factors: Literal["", "llama3", "longrope"] = ""  # divisors of the rotary frequencies, in tensors
    yarn: Mapping[str, Any] = field(default_factory=dict)  # what rope_scaling says of yarn, and no key does
    is_written: bool = False  # whether models of the family can be written as well

    def theirs(self, name: str) -> str | None:
        """Return the checkpoint name of a tensor such as ``blk.0.attn_q.weight``; None for one of no place there."""
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
        """Return the name here of a checkpoint's tensor such as ``model.layers.0.self_attn.q_proj.weight``.

        Raises KeyError for one of no place here.
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
        """Return of how many heads the rows of a checkpoint's tensor are stored with neighbouring pairs; else 0."""
        if not self.interleaved:
            return 0
        if ".self_attn.q_proj." in name:
            return heads
        return kv_heads if ".self_attn.k_proj." in name else 0


def _gemma(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what scales scores: as llama.cpp, the published models of 27B (46 and 62 layers) by another width."""
    is_large = config["num_hidden_layers"] in (46, 62)
    width = config["hidden_size"] // config["num_attention_heads"] if is_large else config["head_dim"]
    return {"query_pre_attn_scalar": width}


def _gemma3(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same, and no window where the file has none: config.json has one by default."""
    return {**_gemma(config), "sliding_window": config.get("sliding_window")}


def _experts(config: Mapping[str, Any], *, share_of_chosen: bool) -> Mapping[str, Any]:
    """Return how wide experts are, as llama.cpp where older files do not say, and what weighs them, which none says."""
    width = config.get("moe_intermediate_size") or config["intermediate_size"] // max(1, config["num_experts_per_tok"])
    return {"moe_intermediate_size": width, "norm_topk_prob": share_of_chosen}


def _qwen2_moe(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same, and how wide the shared expert is."""
    shared = config.get("shared_expert_intermediate_size", config["intermediate_size"])
    return {**_experts(config, share_of_chosen=False), "shared_expert_intermediate_size": shared}


def _gpt_oss(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return that attention has biases, and no scaled rope where the file has none: config.json has one by default."""
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
_SHARES = ("expert_weights_norm",)  # of the chosen: what llama.cpp computes for these, whatever the key says
_LAST_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", **_LAST_CAP}

_ALL = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True, rope_factors="llama3", is_written=True),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", is_written=True),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", _LINEARS | _NORMS | _QK_NORMS, is_written=True),
    Architecture("smollm3", "smollm3", "SmolLM3ForCausalLM", interleaved=True),
    Architecture("granite", "granite", "GraniteForCausalLM", keys=_GRANITE, interleaved=True),
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
"""What a name of ARCHITECTURES means where the metadata counts experts."""
BY_FAMILY = {architecture.family: architecture for architecture in (*_ALL, _MIXTRAL)}
