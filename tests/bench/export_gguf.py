"""Write a Hugging Face Llama as GGUF: ``python export_gguf.py MODEL_DIR OUT.gguf [--type q4_0]``.

llama.cpp itself quantizes. Runs in the peer's environment (llama-cpp-python, gguf, safetensors, numpy). The vocabulary
is made up: only speed is compared.
"""

import argparse
import json
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from safetensors import safe_open

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


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a Hugging Face tensor."""
    stem = name.removesuffix(".weight")
    if stem in TOP_NAMES:
        return TOP_NAMES[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"


def interleave_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of q or k: llama.cpp rotates neighbouring pairs, Hugging Face rotates halves."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).transpose(0, 2, 1, 3).reshape(weight.shape)


def add_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    """Describe the architecture and a byte vocabulary of the right size."""
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(1)
    vocab = config["vocab_size"]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words += [f"w{i}" for i in range(vocab - len(words))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([word.encode() for word in words])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(vocab - 259)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocab - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def export_f16(model: Path, out: Path) -> None:
    """Write the unquantized GGUF."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "llama")
    add_metadata(writer, config)
    with safe_open(model / "model.safetensors", "np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a dict)
            weight = tensors.get_tensor(name)
            if "q_proj" in name:
                weight = interleave_rotary(weight, config["num_attention_heads"])
            elif "k_proj" in name:
                weight = interleave_rotary(weight, config["num_key_value_heads"])
            writer.add_tensor(gguf_name(name), weight.astype(np.float32 if weight.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, out: Path, kind: str) -> None:
    """Let llama.cpp quantize with its own defaults."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params) != 0:
        raise SystemExit(f"llama.cpp could not quantize {source}")


def main() -> None:
    """Export and quantize."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="q4_0", help="llama.cpp's name of the file type")
    options = parser.parse_args()
    plain = options.out.with_suffix(".f16.gguf")
    export_f16(options.model, plain)
    quantize(plain, options.out, options.type)
    plain.unlink()


if __name__ == "__main__":
    main()
