"""A reduced checkpoint in the layout of Granite Switch: a base and adapters in one, from a stated seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from goldens.shapes import word_tokenizer
from numpy.typing import NDArray

EXPECTED = Path(__file__).parent / "switch.npz"
"""Logits of granite-switch over transformers in binary32, as make_switch.py writes them: (prompts, 3, vocab)."""

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, SEED = 2, 64, 96, 4, 2, 120, 3
RANKS = [4, 6, 3]
CONTROL, SUBSTITUTES = [117, 118, 119], [7, 9, 7]
NAMES = ["judge", "query_rewrite", "guardian-core"]

CONFIG: dict[str, Any] = {
    "architectures": ["GraniteSwitchForCausalLM"],
    "model_type": "granite_switch",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "shared_intermediate_size": INNER,
    "num_local_experts": 0,
    "num_hidden_layers": LAYERS + 2,  # those of the switch count
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 0.01,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 0.5,
    "position_embedding_type": "rope",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_adapters": len(NAMES),
    "adapter_names": NAMES,
    "adapter_ranks": RANKS,
    "max_lora_rank": max(RANKS),
    "adapter_token_ids": CONTROL,
    "adapter_substitute_token_ids": SUBSTITUTES,
    "lora_target_modules": ["qkv_proj", "o_proj", "shared_input_linear", "shared_output_linear"],
    "ms_code_m": 6,
    "ms_code_type": "kerdock",
    "ms_memory_gain": 28.0,
    "ms_counting_head_dim": 32,
    "dual_stream": False,
    "dtype": "float32",
}

NARROW = 2  # the last adapter changes q and o alone


def prompts() -> list[list[int]]:
    """Return a prompt without a control token, and one with each, at the start, in the middle and at the end."""
    random = np.random.RandomState(SEED + 1)
    talk = random.randint(10, 110, 30).tolist()
    first, second, third = CONTROL
    return [talk, [first, *talk], [*talk[:17], second, *talk[17:]], [*talk, third], [*talk[:9], third, *talk[9:]]]


def sampled(prompt: list[int]) -> list[int]:
    """Return the positions whose logits are stored."""
    return [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]


def tensors() -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors of the checkpoint, but for those of the switch, which follow from the configuration."""
    random = np.random.RandomState(SEED)
    dim = HIDDEN // HEADS

    def matrix(rows: int, columns: int, gain: float = 1.4) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def pair(module: str, end: str, rows: int, columns: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
        a = np.zeros((len(RANKS), 1, max(RANKS), columns), np.float32)
        b = np.zeros((len(RANKS), 1, rows, max(RANKS)), np.float32)
        for place, rank in enumerate(RANKS):
            if place == NARROW and not (".o_proj" in module or (".qkv_proj" in module and end == "_slices.0")):
                continue
            a[place, 0, :rank] = matrix(rank, columns, 1.0)
            b[place, 0, :, :rank] = matrix(rows, rank, 0.8)
        yield f"{module}.lora_A{end}", a
        yield f"{module}.lora_B{end}", b

    yield "model.embed_tokens.weight", matrix(VOCAB, HIDDEN, 2.0)
    sizes = {
        "self_attn.qkv_proj": (HIDDEN, (HEADS * dim, KV_HEADS * dim, KV_HEADS * dim)),
        "self_attn.o_proj": (HEADS * dim, (HIDDEN,)),
        "shared_mlp.input_linear": (HIDDEN, (INNER, INNER)),
        "shared_mlp.output_linear": (INNER, (HIDDEN,)),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        for module, (columns, slices) in sizes.items():
            yield f"{name}.{module}.base_layer.weight", matrix(sum(slices), columns)
            for place, rows in enumerate(slices):
                yield from pair(f"{name}.{module}", f"_slices.{place}" if len(slices) > 1 else "", rows, columns)
    yield "model.norm.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)


def write(directory: Path, **changes: Any) -> Path:
    """Write the checkpoint and return its directory."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    (directory / "tokenizer.json").write_text(json.dumps(word_tokenizer(VOCAB)))
    switch = {
        "model.switch.codebook": np.zeros((64, 64), np.float32),
        "model.switch.control_to_substitute_lut": np.full(VOCAB, -1, np.int64),
    }
    save_file(dict(tensors()) | switch, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
