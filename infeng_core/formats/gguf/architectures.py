"""The architectures of GGUF as Hugging Face knows them: names of tensors and keys, and what the exporter changed.

Each is a row of data. The exporter is ``convert_hf_to_gguf.py`` of llama.cpp, the names of tensors those of
``gguf-py/gguf/tensor_mapping.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_DECODER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_WHOLE = {theirs: ours for ours, theirs in _WHOLE.items()}


@dataclass(frozen=True)
class Architecture:
    """How one ``general.architecture`` maps to a family of ours."""

    name: str
    family: str  # ``model_type`` of config.json
    model_class: str  # of ``architectures`` there
    blocks: Mapping[str, str] = field(default_factory=lambda: _DECODER)  # a layer's tensors here: there
    keys: Mapping[str, str] = field(default_factory=dict)  # keys of config.json: of the metadata, beyond the usual ones
    constants: Mapping[str, Any] = field(default_factory=dict)  # of config.json
    interleaved: bool = False  # rows of q and k: pairs that are rotated together are neighbours
    norm_offset: float = 0.0  # what the exporter added to the weights of norms
    rope_factors: bool = False  # divisors of the rotary frequencies in ``rope_freqs.weight``

    def theirs(self, name: str) -> str | None:
        """Return the checkpoint name of a tensor such as ``blk.0.attn_q.weight``; None for one of no place there."""
        found = re.fullmatch(r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<stem>[\w-]+)\.(?P<kind>weight|bias)", name)
        if found is None:
            return None
        if found["layer"] is None:
            stem = _WHOLE.get(found["stem"])
            return None if stem is None else f"{stem}.{found['kind']}"
        stem = self.blocks.get(found["stem"])
        return None if stem is None else f"model.layers.{int(found['layer'])}.{stem}.{found['kind']}"

    def ours(self, name: str) -> str:
        """Return the name here of a checkpoint's tensor such as ``model.layers.0.self_attn.q_proj.weight``.

        Raises KeyError for one of no place here.
        """
        stem, _, kind = name.rpartition(".")
        if stem in _OF_WHOLE:
            return f"{_OF_WHOLE[stem]}.{kind}"
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        block = (
            None if found is None else next((here for here, there in self.blocks.items() if there == found[2]), None)
        )
        if found is None or block is None:
            raise KeyError(name)
        return f"blk.{found[1]}.{block}.{kind}"

    def rotary_heads(self, name: str, heads: int, kv_heads: int) -> int:
        """Return of how many heads the rows of a checkpoint's tensor are stored with neighbouring pairs; else 0."""
        if not self.interleaved:
            return 0
        if ".self_attn.q_proj." in name:
            return heads
        return kv_heads if ".self_attn.k_proj." in name else 0


_ALL = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True, rope_factors=True),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", blocks=_DECODER | _HEAD_NORMS),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}
BY_FAMILY = {architecture.family: architecture for architecture in _ALL}
