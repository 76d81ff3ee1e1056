"""Make a small model of every family with transformers and save it as transformers does: ``saved_run.py DIRECTORY``.

Needs an environment with torch and transformers. Each folder, by the family's name, gets what ``save_pretrained``
writes, and golden.npz: ``prompt`` and the ``logits`` of all its positions in binary32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "num_local_experts": 6,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.25,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = ("qwen3_moe", "qwen2_moe", "olmoe", "mixtral", "granitemoe", "gpt_oss", "llama", "gemma3_text", "olmo3")
EYES = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
EYES |= {"deepstack_visual_indexes": [0, 1], "patch_size": 4, "num_position_embeddings": 16}
TURNS = {"rope_type": "default", "rope_theta": 5e3, "mrope_section": [3, 3, 2], "mrope_interleaved": True}


def model_of(name: str) -> torch.nn.Module:
    """Return a model of a family, of the class's own defaults except for its sizes."""
    defaults = AutoConfig.for_model(name)
    if name == "qwen3_vl":
        text = {key: value for key, value in SIZES.items() if hasattr(defaults.text_config, key)}
        parts = {"text_config": {**text, **ENDS, "rope_parameters": TURNS}, "vision_config": EYES}
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(name, **parts), dtype=torch.float32)
    own = defaults.to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in own}
    config = AutoConfig.for_model(name, **sizes, **ENDS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")


@torch.no_grad()
def save(name: str, directory: Path) -> None:
    """Write one model with random weights, none at what it begins with."""
    torch.manual_seed(len(name))
    model = model_of(name).eval()
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.copy_(
                torch.rand_like(parameter) * 0.8 + 0.6 if "norm" in key else torch.randn_like(parameter) * 0.2
            )
        else:
            parameter.normal_(0, 1.0 if "embed" in key else 1.3 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    prompt = torch.randint(3, 300, (1, 120))
    np.savez_compressed(directory / "golden.npz", prompt=prompt[0].numpy(), logits=model(prompt).logits[0].numpy())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in (*FAMILIES, "qwen3_vl"):
        save(family, Path(sys.argv[1]) / family)
