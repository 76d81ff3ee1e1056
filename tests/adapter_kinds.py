"""One small mixture of experts, and adapters on it of every kind and every two kinds together, as PEFT saves them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny_model
from expert_deltas import ALPHA, PREFIX, QWEN3_PARAMETERS, QWEN3_PLACES, RANK, Deltas
from goldens.families import QWEN3_MOE
from numpy.typing import NDArray
from safetensors.numpy import save_file

CASE = replace(
    QWEN3_MOE, config={**QWEN3_MOE.config, "vocab_size": tiny_model.VOCAB, "attention_bias": True, "eos_token_id": 1}
)
INVOCATION = (60, 61)
TRAINED = [7, 33]
PROMPT = [*(5 + i % 40 for i in range(50)), *INVOCATION, *(9 + i % 30 for i in range(14))]

KINDS = (
    *("LoRA", "rsLoRA", "DoRA", "aLoRA", "lora_bias", "bias"),
    *("embedding", "trained tokens", "head", "saved modules", "experts"),
)


def write_model(directory: Path) -> Path:
    """Write the model, with a tokenizer of bytes."""
    CASE.write(directory)
    text = tiny_model.write(directory / "tokenizer", tiny_model.Shape()) / "tokenizer.json"
    (directory / "tokenizer.json").write_text(text.read_text())
    return directory


def write_adapter(directory: Path, kinds: Collection[str], seed: int = 1) -> Path:
    """Write an adapter of q and v that is of all ``kinds`` at once, and return its directory."""
    config, tensors = _Parts(frozenset(kinds), seed).all()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file({PREFIX + name: np.ascontiguousarray(one) for name, one in tensors.items()}, directory / FILE)
    return directory


FILE = "adapter_model.safetensors"


class _Parts:
    def __init__(self, kinds: frozenset[str], seed: int) -> None:
        self.kinds, self.seed = kinds, seed
        self.random = np.random.default_rng(seed)
        sizes = CASE.config
        self.vocab, self.hidden = sizes["vocab_size"], sizes["hidden_size"]
        self.rows = {"q_proj": sizes["num_attention_heads"] * CASE.head_dim}
        self.rows["v_proj"] = sizes["num_key_value_heads"] * CASE.head_dim
        self.tensors: dict[str, NDArray[np.float32]] = {}

    def all(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        has = self.kinds.__contains__
        targets = [*self.rows, *(["lm_head"] if has("head") else []), *(["embed_tokens"] if has("embedding") else [])]
        config: dict[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
        for layer in range(CASE.config["num_hidden_layers"]):
            for name, rows in self.rows.items():
                self.linear(f"model.layers.{layer}.self_attn.{name}", rows)
        if has("head"):
            self.linear("lm_head", self.vocab)
        if has("embedding"):
            self.tensors["model.embed_tokens.lora_embedding_A"] = self.normal(RANK, self.vocab)
            self.tensors["model.embed_tokens.lora_embedding_B"] = 0.1 * self.normal(self.hidden, RANK)
            if has("DoRA"):
                self.tensors["model.embed_tokens.lora_magnitude_vector"] = self.magnitude(self.hidden)
        if has("trained tokens"):
            config["trainable_token_indices"] = TRAINED
            rows = self.normal(len(TRAINED), self.hidden)
            self.tensors["model.embed_tokens.token_adapter.trainable_tokens_delta"] = rows
        if has("saved modules"):
            config["modules_to_save"] = ["model.norm"]
            self.tensors["model.norm.weight"] = self.magnitude(self.hidden)
        if has("bias"):
            config["bias"] = "all"
            self.tensors["model.layers.0.self_attn.k_proj.bias"] = self.normal(self.rows["v_proj"])
        if has("experts"):
            experts = Deltas(CASE, self.seed).parameters(QWEN3_PLACES, is_straight=True)
            held = {name.removeprefix(PREFIX): one for name, one in experts.items() if "experts" in name}
            self.tensors |= held
            config |= {"target_parameters": QWEN3_PARAMETERS, "peft_version": "0.20.0"}
        if has("aLoRA"):
            config["alora_invocation_tokens"] = INVOCATION
        flags = {"use_rslora": has("rsLoRA"), "use_dora": has("DoRA"), "lora_bias": has("lora_bias")}
        return config | flags, self.tensors

    def linear(self, name: str, rows: int) -> None:
        self.tensors[f"{name}.lora_A.weight"] = self.normal(RANK, self.hidden) / np.float32(np.sqrt(self.hidden))
        self.tensors[f"{name}.lora_B.weight"] = 0.3 * self.normal(rows, RANK)
        if "lora_bias" in self.kinds:
            self.tensors[f"{name}.lora_B.bias"] = 0.3 * self.normal(rows)
        if "DoRA" in self.kinds:
            self.tensors[f"{name}.lora_magnitude_vector"] = self.magnitude(rows)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        return self.random.standard_normal(shape, np.float32)

    def magnitude(self, size: int) -> NDArray[np.float32]:
        return self.random.uniform(0.7, 1.6, size).astype(np.float32)
