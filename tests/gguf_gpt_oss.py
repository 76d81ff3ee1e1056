"""gpt-oss as llama.cpp's exporter writes it to GGUF, with the format's own library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import tiny_model
from goldens.families import FamilyCase
from mxfp4_parts import CASE
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]


def keys_of(case: FamilyCase) -> dict[str, Any]:
    """Return the keys of the metadata behind the architecture's name."""
    config, yarn = case.config, case.config["rope_scaling"]
    return gguf_writing.numbers(config, case.head_dim) | {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": 128,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": yarn["beta_fast"],
        "rope.scaling.yarn_beta_slow": yarn["beta_slow"],
    }


def exported(tensors: Mapping[str, NDArray[np.float32]]) -> Tensors:
    """Return a checkpoint's tensors as ``GptOssModel`` of llama.cpp's exporter names and shapes them."""
    table, found = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, 4), {}
    for name, values in tensors.items():
        last = name.rpartition(".")[2]
        if ".experts." in name:
            block, kind = f"blk.{name.split('.')[2]}", "bias" if last.endswith("_bias") else "weight"
            rows = values if kind == "bias" else values.swapaxes(1, 2)  # (experts, outputs) or that and inputs
            gates = last.startswith("gate_up_proj")
            parts = {"gate": rows[:, ::2], "up": rows[:, 1::2]} if gates else {"down": rows}
            found |= {f"{block}.ffn_{part}_exps.{kind}": part_rows for part, part_rows in parts.items()}
        elif last == "sinks":
            found[f"{table.get_name(name)}.weight"] = values
        else:
            found[table.get_name(name, try_suffixes=(".weight", ".bias"))] = values
    return {name: np.ascontiguousarray(values) for name, values in found.items()}


def write(
    path: Path,
    tensors: Mapping[str, NDArray[np.float32]],
    kind: str = "MXFP4",
    *,
    case: FamilyCase = CASE,
    vocabulary: Mapping[str, Any] | None = None,
    rest: str = "F32",
    keys: Mapping[str, Any] | None = None,
    change: Callable[[Tensors], object] = lambda tensors: None,
) -> Path:
    """Write a gpt-oss with experts of a type, all other matrices but the router in ``rest``; a key of None: without.

    vocabulary: a tokenizer.json as ``gguf_writing.add_vocabulary`` takes it.
    """
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    gguf_writing.add_keys(writer, {**keys_of(case), **(keys or {})})
    gguf_writing.add_vocabulary(
        writer, vocabulary or json.loads(tiny_model.tokenizer(case.config["vocab_size"]).to_str())
    )
    made = exported(tensors)
    change(made)
    for name, values in made.items():
        is_float = values.ndim == 1 or name.endswith(".bias") or "ffn_gate_inp" in name
        to = gguf.GGMLQuantizationType["F32" if is_float else kind if "_exps." in name else rest]
        writer.add_tensor(name, gguf.quantize(values, to), raw_dtype=to)
    gguf_writing.finish(writer)
    return path
