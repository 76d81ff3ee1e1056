"""Write a random model of given shapes as a Hugging Face directory: ``python synthetic.py tinyllama-1.1b DEST``.

Speed does not depend on the values of weights, so benchmarks need no download. Weights are normal with deviation 0.02
(norm weights 1), stored as f16, one safetensors file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TINYLLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
SHAPES = {"tinyllama-1.1b": TINYLLAMA, "smollm2-135m": SMOLLM2_135M}


def hugging_face_config(shape: str) -> dict[str, Any]:
    """Return a complete config.json for one of SHAPES."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float16",
        **SHAPES[shape],
    }


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, NDArray[np.float16]]:
    """Return every tensor of a Llama by its Hugging Face name."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }

    def normal(shape: tuple[int, int]) -> NDArray[np.float16]:
        return (rng.standard_normal(shape, dtype=np.float32) * 0.02).astype(np.float16)

    ones = np.ones(hidden, np.float16)
    tensors = {"model.embed_tokens.weight": normal((vocab, hidden)), "model.norm.weight": ones}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal((vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = normal(shape)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = ones.copy()
        tensors[f"model.layers.{layer}.post_attention_layernorm.weight"] = ones.copy()
    return tensors


def byte_tokenizer(vocab: int) -> Tokenizer:
    """Return a tokenizer that gives one id per byte and fills the rest of the vocabulary with unused words."""
    words = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<unused{i}>" for i in range(vocab - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(shape: str, destination: Path) -> None:
    """Write config.json, model.safetensors and a tokenizer under ``destination``."""
    destination.mkdir(parents=True, exist_ok=True)
    config = hugging_face_config(shape)
    save_file(random_tensors(config), destination / "model.safetensors")
    byte_tokenizer(config["vocab_size"]).save(str(destination / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
    }
    (destination / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (destination / "config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("destination", type=Path)
    options = parser.parse_args()
    write_model(options.shape, options.destination)


if __name__ == "__main__":
    main()
