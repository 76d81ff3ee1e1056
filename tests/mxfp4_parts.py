"""A reduced gpt-oss as it is published, experts in MXFP4 beside bf16, and the same in floats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from goldens.families import GPT_OSS_PLAIN, FamilyCase
from numpy.typing import NDArray
from quantized_parts import Array, Tensors, save, wide

CASE = GPT_OSS_PLAIN
EXPERTS, HIDDEN, INNER = 5, 64, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
STACKS = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}


def meaning(blocks: Array, scales: Array) -> NDArray[np.float32]:
    """Return (experts, outputs, inputs), value by value as the formats are defined."""
    values = np.concatenate([E2M1, -E2M1])
    pairs = np.stack([values[blocks & 15], values[blocks >> 4]], axis=-1)  # (experts, outputs, groups, 16, 2)
    scaled = pairs.reshape(*scales.shape, 32) * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return scaled.reshape(*scales.shape[:2], -1).astype(np.float32)


def tensors(exponents: tuple[int, int] = (121, 126)) -> tuple[Tensors, dict[str, NDArray[np.float32]]]:
    """Return the tensors of a checkpoint in MXFP4 and bf16, and those of one in floats that means the same."""
    random = np.random.default_rng(7)
    stored: Tensors = {}
    floats: dict[str, NDArray[np.float32]] = {}
    for name, values in CASE.tensors():
        last = name.rpartition(".")[2]
        if last in STACKS:
            rows, k = STACKS[last]
            blocks = random.integers(0, 256, (EXPERTS, rows, k // 32, 16), np.uint8)
            scales = random.integers(*exponents, (EXPERTS, rows, k // 32), np.uint8)
            stored |= {f"{name}_blocks": ("U8", blocks), f"{name}_scales": ("U8", scales)}
            floats[name] = np.ascontiguousarray(meaning(blocks, scales).swapaxes(1, 2))
        else:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            stored[name], floats[name] = ("BF16", bits), wide(bits)
    return stored, floats


def write(directory: Path, stored: Tensors, case: FamilyCase = CASE) -> Path:
    case.write(directory)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    said = {"quantization_config": {"modules_to_not_convert": left, "quant_method": "mxfp4"}}
    (directory / "config.json").write_text(json.dumps(case.config | said))
    save(directory / "model.safetensors", stored)
    return directory
