"""A tiny random Llama as a Hugging Face directory, with a tokenizer of bytes, made in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import Entry, tensor_header
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

HIDDEN, INNER, HEADS, KV_HEADS, SIZE, LAYERS = 64, 176, 4, 2, 16, 2
VOCAB, BOS, EOS = 320, 0, 1
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}
"""config.json."""


def write(folder: Path, config: Mapping[str, Any] = CONFIG, tensors: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """Write a model directory and return it; tensors: float32 by their checkpoint names, random ones by default."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    _safetensors(folder / "model.safetensors", random_tensors() if tensors is None else tensors)
    _tokenizer().save(str(folder / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**words, "add_bos_token": True}))
    return folder


def random_tensors() -> dict[str, NDArray[np.float32]]:
    """Return weights with which logits have a standard deviation of a few units."""
    random, found = np.random.default_rng(0), {}
    for name, shape in shapes().items():
        found[name] = random_tensor(random, shape, 3.0 if "embed" in name else 1.0)
    return found


def random_tensor(random: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> NDArray[np.float32]:
    """Return a matrix whose products keep the magnitude of their inputs, or a vector around 1."""
    values = random.standard_normal(shape)
    made = values * scale / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.2 * values
    return made.astype(np.float32)


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by their checkpoint names."""
    q, kv = HEADS * SIZE, KV_HEADS * SIZE
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        of_layer = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (q, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, q),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def _safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors of float32."""
    entries = [Entry(name, "F32", values.shape, values.nbytes) for name, values in tensors.items()]
    with path.open("wb") as file:
        file.write(tensor_header(entries, {"format": "pt"}))
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, np.float32).tobytes())


def _tokenizer() -> Tokenizer:
    """Return a tokenizer with an id for each byte, which puts BOS before a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({"<s>": BOS, "</s>": EOS, **{c: i + 2 for i, c in enumerate(alphabet)}}, []))
    made.add_special_tokens(["<s>", "</s>"])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return made
