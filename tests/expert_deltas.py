"""LoRA on the experts of a reduced case: merged weights, and the files that PEFT writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from goldens.families import FamilyCase
from numpy.typing import NDArray
from safetensors.numpy import save_file

RANK, ALPHA = 3, 6
Tensors = dict[str, NDArray[np.float32]]
PREFIX = "base_model.model."

NAMES = {
    "qwen3_moe": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"),
    "mixtral": tuple(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w3", "w2")),
}


class Deltas:
    """Low-rank products for q and all experts of a case; gate and up share an A."""

    def __init__(self, case: FamilyCase, seed: int) -> None:
        config, random = case.config, np.random.RandomState(seed)
        self.case, self.count = case, config.get("num_experts") or config["num_local_experts"]
        self.inner = config.get("moe_intermediate_size", config["intermediate_size"])
        self.hidden = config["hidden_size"]
        self.layers = [layer for layer in range(config["num_hidden_layers"]) if layer not in case.dense]

        def pair(rows: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            a = random.standard_normal((RANK, k)) / np.sqrt(k)
            return a.astype(np.float32), (random.standard_normal((rows, RANK)) * 0.3).astype(np.float32)

        each = range(self.count)
        self.gate_up = {layer: [pair(2 * self.inner, self.hidden) for _ in each] for layer in self.layers}
        self.down = {layer: [pair(self.hidden, self.inner) for _ in each] for layer in self.layers}
        width = config["num_attention_heads"] * case.head_dim
        layers = range(config["num_hidden_layers"])
        self.q = {f"model.layers.{layer}.self_attn.q_proj": pair(width, self.hidden) for layer in layers}

    def merged(self, weights: Tensors, weight: float = 1.0) -> Tensors:
        made, scale = dict(weights), np.float32(weight * ALPHA / RANK)
        for name, (a, b) in self.q.items():
            made[f"{name}.weight"] = weights[f"{name}.weight"] + scale * b @ a
        for layer in self.layers:
            name = f"model.layers.{layer}"
            wide = [scale * b @ a for a, b in self.gate_up[layer]]
            back = [scale * b @ a for a, b in self.down[layer]]
            if self.case.experts == "stacks":
                made[f"{name}.block_sparse_moe.input_linear.weight"] += np.stack(wide)
                made[f"{name}.block_sparse_moe.output_linear.weight"] += np.stack(back)
                continue
            for expert, (first, last) in enumerate(zip(wide, back, strict=True)):
                parts = (first[: self.inner], first[self.inner :], last)
                for module, delta in zip(NAMES[self.case.config["model_type"]], parts, strict=True):
                    key = f"{name}.{module.format(expert)}.weight"
                    made[key] = weights[key] + delta
        return made

    def of_attention(self) -> Tensors:
        return {
            f"{PREFIX}{name}.lora_{side}.weight": one
            for name, pair in self.q.items()
            for side, one in zip("AB", pair, strict=True)
        }

    def modules(self) -> Tensors:
        """Return the tensors for models whose experts are modules, up to transformers 4."""
        found = self.of_attention()
        for layer in self.layers:
            for expert in range(self.count):
                (a, b), (c, d) = self.gate_up[layer][expert], self.down[layer][expert]
                pairs = ((a, b[: self.inner]), (a, b[self.inner :]), (c, d))
                for module, pair in zip(NAMES[self.case.config["model_type"]], pairs, strict=True):
                    name = f"{PREFIX}model.layers.{layer}.{module.format(expert)}"
                    found |= {f"{name}.lora_{side}.weight": one for side, one in zip("AB", pair, strict=True)}
        return found

    def parameters(self, places: tuple[str, str], *, is_straight: bool) -> Tensors:
        """Return the tensors for parameters of three dimensions; in B, the expert index varies fastest."""
        found = self.of_attention()
        for layer in self.layers:
            for place, pairs in zip(places, (self.gate_up[layer], self.down[layer]), strict=True):
                own = [(a, b) if is_straight else (b.T, a.T) for a, b in pairs]
                name = f"{PREFIX}model.layers.{layer}.{place}"
                found[f"{name}.lora_A.weight"] = np.concatenate([a for a, _ in own])  # (experts * r, p)
                stacked = np.stack([b for _, b in own], axis=2)  # (q, r, experts)
                found[f"{name}.lora_B.weight"] = stacked.reshape(len(stacked), -1)
        return found

    def stacks(self, *, fused: bool = False) -> Tensors:
        """As convert_lora_to_gguf.py stacks modules of all experts: A (experts, r, k) and B (experts, rows, r).

        fused: gates above ups. Rows of q are as PEFT has them.
        """
        found = {
            f"blk.{name.split('.')[2]}.attn_q.weight.lora_{side}": one
            for name, pair in self.q.items()
            for side, one in zip("ab", pair, strict=True)
        }
        for layer in self.layers:
            a, b = (np.stack(each) for each in zip(*self.gate_up[layer], strict=True))
            held = {"gate_up": (a, b)} if fused else {"gate": (a, b[:, : self.inner]), "up": (a, b[:, self.inner :])}
            held["down"] = tuple(np.stack(each) for each in zip(*self.down[layer], strict=True))
            for part, pair in held.items():
                name = f"blk.{layer}.ffn_{part}_exps.weight"
                found |= {f"{name}.lora_{side}": one for side, one in zip("ab", pair, strict=True)}
        return found


QWEN3_PLACES = ("mlp.experts.base_layer", "mlp.experts")
QWEN3_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
DENSE = r"model\.layers\.1\.mlp\..*"


def write(directory: Path, tensors: Tensors, **config: Any) -> Path:
    directory.mkdir()
    save_file(
        {name: np.ascontiguousarray(one) for name, one in tensors.items()}, directory / "adapter_model.safetensors"
    )
    base = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps({**base, **config}))
    return directory


def forms(directory: Path, deltas: Deltas) -> Mapping[str, Path]:
    """Write the same adapter in each way that PEFT saves it."""
    modules = ["q_proj", "gate_proj", "up_proj", "down_proj"]
    parameters = {"target_parameters": QWEN3_PARAMETERS}
    both = (deltas.parameters(QWEN3_PLACES, is_straight=one) for one in (True, False))
    return {
        # dense layers also have gate_proj, up_proj and down_proj, but the file has no tensors for them
        "modules": write(directory / "modules", deltas.modules(), target_modules=modules, exclude_modules=DENSE),
        "from 0.19": write(directory / "straight", next(both), **parameters, peft_version="0.19.1"),
        "up to 0.18": write(directory / "turned", next(both), **parameters),
    }
