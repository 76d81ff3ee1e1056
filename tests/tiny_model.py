"""Tiny random Llamas as Hugging Face directories, with a byte-level tokenizer: real files, made in milliseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB = 320
BOS, EOS = 0, 1

_CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "héllo wörld, 你好 🦙",
    "1 2 3 4 5 6 7 8 9 0",
    "\n\n\t  x = y",
]


@dataclass(frozen=True)
class Shape:
    """Sizes of a tiny Llama. The defaults use grouped queries and nothing that is a multiple of 64 but ``hidden``."""

    hidden: int = 64
    intermediate: int = 176
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = VOCAB
    max_positions: int = 256
    tie: bool = True
    bias: bool = False
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # more keys of config.json


def config(shape: Shape) -> dict[str, Any]:
    """Return config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": shape.tie,
        "attention_bias": shape.bias,
        "mlp_bias": shape.bias,
        "hidden_act": "silu",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **shape.extra,
    }


def tensors(shape: Shape) -> dict[str, NDArray[np.float32]]:
    """Return random weights by their checkpoint names, float32; logits have a standard deviation of a few units."""
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, mean: float) -> NDArray[np.float32]:
        return (mean + 0.2 * random.standard_normal(size)).astype(np.float32)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found = {
        "model.embed_tokens.weight": matrix(shape.vocab, shape.hidden, scale=3.0),
        "model.norm.weight": vector(shape.hidden, 1.0),
    }
    if not shape.tie:
        found["lm_head.weight"] = matrix(shape.vocab, shape.hidden, scale=3.0)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        found[f"{name}.input_layernorm.weight"] = vector(shape.hidden, 1.0)
        found[f"{name}.post_attention_layernorm.weight"] = vector(shape.hidden, 1.0)
        for linear, rows, columns in (
            ("self_attn.q_proj", q, shape.hidden),
            ("self_attn.k_proj", kv, shape.hidden),
            ("self_attn.v_proj", kv, shape.hidden),
            ("self_attn.o_proj", shape.hidden, q),
            ("mlp.gate_proj", shape.intermediate, shape.hidden),
            ("mlp.up_proj", shape.intermediate, shape.hidden),
            ("mlp.down_proj", shape.hidden, shape.intermediate),
        ):
            found[f"{name}.{linear}.weight"] = matrix(rows, columns)
            if shape.bias:
                found[f"{name}.{linear}.bias"] = vector(rows, 0.0)
    return found


def tokenizer(vocab: int = VOCAB) -> Tokenizer:
    """Return a byte-level BPE tokenizer of at most ``vocab`` ids that puts BOS before a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS * 4, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return made


def write(directory: Path, shape: Shape | None = None) -> Path:
    """Write a model directory (config, weights, tokenizer) and return it."""
    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(shape), indent=1))
    save_file(tensors(shape), directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer(shape.vocab).save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    return directory
