"""The common parts of llama.cpp's GGUF files, written with the format's own library: numbers, vocabulary, rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
from numpy.typing import NDArray


def numbers(config: Mapping[str, Any], head_dim: int = 0) -> dict[str, int | float]:
    """Return the keys of any architecture, behind its name, of a config.json; head_dim: where exporters write it."""
    widths = {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        **(widths if head_dim else {}),
    }


def add_keys(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    """Write keys behind the architecture's name; None for none."""
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        if value is not None:
            add[type(value)](f"{writer.arch}.{key}", value)


def add_vocabulary(writer: gguf.GGUFWriter, document: Mapping[str, Any]) -> None:
    """Write the tokenizer.json of ``tiny_model``, whose first two tokens are special."""
    vocab = document["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    writer.add_token_types([3, 3] + [1] * (len(vocab) - 2))
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])


def interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Order rows as ``LlamaModel.permute`` of convert_hf_to_gguf.py."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
