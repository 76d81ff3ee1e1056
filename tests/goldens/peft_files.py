"""Read a PEFT directory by the text of PEFT's own semantics: none of the engine's code is between.

Low-rank parts of linears, embedding and head, DoRA's magnitudes, biases of both kinds, single rows of embedding and
head, and modules trained whole.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_numpy.adapter import Adapter, Change
from infeng_numpy.llama import Linear
from numpy.typing import NDArray

ENDS = {"model.embed_tokens.weight", "lm_head.weight"}  # a tied checkpoint has one of them
Tensors = Mapping[str, NDArray[Any]]
Real = NDArray[np.float64]


def tensors_of(path: Path) -> dict[str, Real]:
    """Return the tensors of a safetensors file (F32, F16, BF16) in binary64."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = raw[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":  # the upper half of a binary32
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        found[name] = values.astype(np.float64).reshape(entry["shape"])
    return found


def scaling(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return alpha / r, or alpha / sqrt(r) with rsLoRA; ``alpha_pattern`` names modules by the end of their names."""
    patterns = config.get("alpha_pattern") or {}
    alpha = next((patterns[p] for p in patterns if re.fullmatch(rf"(.*\.)?({p})", module)), config["lora_alpha"])
    return float(alpha / (np.sqrt(rank) if config.get("use_rslora") else rank))


def read(directory: Path, base: Tensors) -> Adapter:
    """Return the adapter of a directory over the model with tensors ``base``, by their names in its checkpoint."""
    config = json.loads((directory / "adapter_config.json").read_text())
    stored = {
        name.removeprefix("base_model.model."): tensor
        for name, tensor in tensors_of(directory / "adapter_model.safetensors").items()
    }
    embed = base.get("model.embed_tokens.weight", base.get("lm_head.weight"))
    weights = {"model.embed_tokens.weight": embed, "lm_head.weight": embed} | dict(base)
    trained = _trained(config, stored, weights, is_tied=len(base.keys() & ENDS) == 1)
    stored = {name: tensor for name, tensor in stored.items() if ".token_adapter." not in name}
    modules = {re.sub(r"\.(base_layer\.)?(lora_\w+(\.weight|\.bias)?|bias)$", "", name) for name in stored}
    changes = {
        module: _change(config, module, stored, weights)
        for module in modules
        if not any(module.endswith(end) for end in (".weight", ".base_layer"))
    }
    head = stored.get("lm_head.weight")
    return Adapter(
        changes=changes | trained,
        embed=stored.get("model.embed_tokens.weight"),
        head=None if head is None else Linear(head),
        norms={name[: -len(".weight")]: tensor for name, tensor in stored.items() if name.endswith("norm.weight")},
    )


def _trained(config: Mapping[str, Any], stored: Tensors, weights: Tensors, *, is_tied: bool) -> dict[str, Change]:
    """Return single trained rows of embedding and head as distances from the base's, at the places of their tokens."""
    given, found = config.get("trainable_token_indices") or {}, {}
    for end, tokens in (given if isinstance(given, dict) else {"embed_tokens": given}).items():
        [name] = [one for one in ("model.embed_tokens", "lm_head") if one.endswith(end)]
        rows = stored[f"{name}.token_adapter.trainable_tokens_delta"]
        for module in ("model.embed_tokens", "lm_head") if is_tied else (name,):
            weight = np.asarray(weights[f"{module}.weight"], np.float64)
            places, distances = np.eye(len(weight))[:, tokens], rows - weight[tokens]
            a, b = (distances, places) if module == "lm_head" else (places.T, distances.T)
            found[module] = Change(a, b, np.ones(len(tokens)), None, 0.0)
    return found


def _change(config: Mapping[str, Any], module: str, stored: Tensors, weights: Tensors) -> Change:
    weight = np.asarray(weights[f"{module}.weight"], np.float64)  # (outputs, inputs); of an embedding (vocab, hidden)
    is_embedding = f"{module}.lora_embedding_A" in stored
    if is_embedding:
        weight = weight.T  # (hidden, vocab): an embedding is a linear of one-hot rows
        a, b = stored[f"{module}.lora_embedding_A"], stored[f"{module}.lora_embedding_B"]
    else:
        a = stored.get(f"{module}.lora_A.weight", np.zeros((0, weight.shape[1])))
        b = stored.get(f"{module}.lora_B.weight", np.zeros((weight.shape[0], 0)))
    factor = scaling(config, module, len(a)) if len(a) else 0.0
    bias = _bias(module, stored, weights)
    if f"{module}.lora_B.bias" in stored:
        bias = bias + factor * stored[f"{module}.lora_B.bias"]
    magnitude = stored.get(f"{module}.lora_magnitude_vector")
    if magnitude is not None:
        magnitude = magnitude / np.linalg.norm(weight + factor * b @ a, axis=1)
    return Change(a, b, np.full(len(a), factor), magnitude, bias)


def _bias(module: str, stored: Tensors, weights: Tensors) -> Any:
    """Return what a trained bias adds to the one that the model has, or 0."""
    for name in (f"{module}.base_layer.bias", f"{module}.bias"):
        if name in stored:
            return stored[name] - weights[f"{module}.bias"]
    return 0.0
