"""Random LoRA adapters of tiny models as PEFT directories: real files, made in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tiny_model import Shape


def write(
    directory: Path,
    seed: int,
    *,
    rank: int = 4,
    targets: tuple[str, ...] = ("q_proj", "v_proj", "down_proj"),
    shape: Shape | None = None,
    strength: float = 0.3,
    norm: bool = False,
    invocation: tuple[int, ...] = (),
) -> Path:
    """Write an adapter that changes every text visibly, and return its directory.

    norm: with a final one of its own. invocation: of an activated adapter.
    """
    shape = shape or Shape()
    sizes = {
        "q_proj": ("self_attn", shape.heads * shape.head_dim, shape.hidden),
        "v_proj": ("self_attn", shape.kv_heads * shape.head_dim, shape.hidden),
        "down_proj": ("mlp", shape.hidden, shape.intermediate),
    }
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(shape.layers):
        for target in targets:
            block, rows, columns = sizes[target]
            name = f"base_model.model.model.layers.{layer}.{block}.{target}"
            a = random.standard_normal((rank, columns)) / np.sqrt(columns)
            b = strength * random.standard_normal((rows, rank))
            tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = b.astype(np.float32)
    if norm:
        tensors["base_model.model.model.norm.weight"] = random.standard_normal(shape.hidden).astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    settings |= {"target_modules": list(targets), "modules_to_save": ["model.norm"] if norm else None}
    settings |= {"alora_invocation_tokens": list(invocation) or None}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory
