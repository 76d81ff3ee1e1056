"""Hugging Face Llamas as GGUF, for llama.cpp: ``PYTHON -P export_gguf.py MODEL_DIR OUT.gguf --type q4_0``.

A standalone program: it runs in a peer's environment with the package ``gguf`` and imports nothing of this project. It
writes f16 itself and makes every other type with llama.cpp's quantizer and its defaults, as llama.cpp's users do (the
head of a Q4_0 file is Q6_K). The vocabulary is invented, since only speed is compared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
BYTES = 256
SPECIAL = ("<unk>", "<s>", "</s>")
KIND_UNKNOWN, KIND_CONTROL, KIND_BYTE, KIND_NORMAL = 2, 3, 6, 1  # llama.cpp's token types


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a Hugging Face tensor; raises ValueError for a tensor that no Llama has."""
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in TOP_NAMES:
        return TOP_NAMES[stem] + ".weight"
    parts = stem.split(".", 3)
    if kind != "weight" or len(parts) != 4 or parts[:2] != ["model", "layers"] or parts[3] not in LAYER_NAMES:
        raise ValueError(f"tensor {name} is not of a Llama")
    return f"blk.{parts[2]}.{LAYER_NAMES[parts[3]]}.weight"


def interleave_rotary(weight: Array, heads: int) -> Array:
    """Reorder rows of q or k, (heads * head_dim, hidden): RoPE rotates adjacent rows in llama.cpp, halves in HF."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).transpose(0, 2, 1, 3).reshape(weight.shape)


def read_safetensors(model: Path) -> Iterator[tuple[str, Array]]:
    """Yield name and values of each tensor of a directory, mapped; bfloat16 becomes float32. Raises ValueError."""
    kinds = {"F16": np.float16, "F32": np.float32, "BF16": np.uint16}
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{model} has no .safetensors file")
    for file in files:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
        data = np.memmap(file, np.uint8, "r", offset=8 + length)
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in kinds:
                raise ValueError(f"{file.name}: tensor {name} is {entry['dtype']}, not one of {', '.join(kinds)}")
            begin, end = entry["data_offsets"]
            array = data[begin:end].view(kinds[entry["dtype"]]).reshape(entry["shape"])
            if entry["dtype"] == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            yield name, array


def read_config(model: Path) -> dict[str, Any]:
    """Return config.json, with transformers 5's ``rope_parameters`` as ``rope_theta`` and ``rope_scaling``."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if parameters := config.get("rope_parameters"):
        config = {"rope_theta": parameters["rope_theta"], "rope_scaling": parameters, **config}
    return config


def rope_factors(config: dict[str, Any], width: int) -> Array | None:
    """Return the divisors of the rotary frequencies of Llama 3's scaling, (width / 2,); None without scaling.

    Source: the same interpolation as transformers' ``_compute_llama3_parameters``, as a factor per frequency.
    """
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope scaling {kind!r} cannot be exported")
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    frequencies = float(config["rope_theta"]) ** -(np.arange(0, width, 2) / width)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)  # 1 where the original context holds many turns
    factors: Array = (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)
    return factors


def add_metadata(writer: Any, config: dict[str, Any]) -> None:
    """Describe the architecture and a byte vocabulary of the right size."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_file_type(1)  # f16
    vocab = config["vocab_size"]
    words = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(BYTES))][:vocab]
    made_up = vocab - len(words)
    kinds = [KIND_UNKNOWN, KIND_CONTROL, KIND_CONTROL, *[KIND_BYTE] * BYTES][:vocab]
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([word.encode() for word in [*words, *(f"w{i}" for i in range(made_up))]])
    writer.add_token_scores([0.0] * len(words) + [-float(i) for i in range(made_up)])
    writer.add_token_types(kinds + [KIND_NORMAL] * made_up)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def export_f16(model: Path, out: Path) -> None:
    """Write a Hugging Face directory as an f16 GGUF; vectors stay float32. Raises ValueError if it is not a Llama."""
    import gguf

    config = read_config(model)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(str(out), "llama")
    add_metadata(writer, config)
    factors = rope_factors(config, width)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for name, weight in read_safetensors(model):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        projection = name.split(".")[-2]
        if projection in heads:
            weight = interleave_rotary(weight, heads[projection])
        writer.add_tensor(gguf_name(name), weight.astype(np.float32 if weight.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, out: Path, kind: str) -> None:
    """Quantize with llama.cpp's defaults. Raises ValueError for an unknown type, RuntimeError on failure."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    file_type = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}", None)
    if file_type is None:
        raise ValueError(f"llama.cpp has no file type {kind!r}")
    parameters.ftype = file_type
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), parameters) != 0:
        raise RuntimeError(f"llama.cpp could not quantize {source} to {kind}")


def main() -> int:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="q4_0", help="f16, or llama.cpp's name of the file type (default: q4_0)")
    options = parser.parse_args()
    try:
        if options.type == "f16":
            export_f16(options.model, options.out)
            return 0
        plain = options.out.with_suffix(".f16.gguf")
        try:
            export_f16(options.model, plain)
            quantize(plain, options.out, options.type)
        finally:
            plain.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        print(f"gguf: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
