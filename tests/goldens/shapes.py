"""Reduced Llama shapes with random weights: what the goldens, the mutation test and the live comparison run on.

Weights come from a stated seed by NumPy's frozen legacy generator, so a golden file need not hold them. Nothing is
left at a value that hides a mistake: norm weights and biases are random, queries and keys are large enough for peaked
attention, and the epsilon of the norms is large enough to be seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GREEDY_STEPS = 64


@dataclass(frozen=True)
class Case:
    """One shape, its seed, and how long its prompt is."""

    name: str
    seed: int
    prompt_length: int
    config: dict[str, Any]  # the text of config.json, as a checkpoint of the family would have it
    stored_head: bool = field(default=False)  # a tied model that stores lm_head and not the embedding

    @property
    def head_dim(self) -> int:
        """Return the size of a head, given or derived."""
        c = self.config
        return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])

    @property
    def prompt(self) -> NDArray[np.int32]:
        """Return the prompt, (prompt_length,)."""
        random = np.random.RandomState(self.seed + 1)
        return random.randint(3, self.config["vocab_size"], self.prompt_length).astype(np.int32)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Return the positions whose logits are compared: the ends, both sides of blocks and splits, and some more."""
        edges = [0, 1, 15, 16, 17, 63, 64, 127, 128, 255, 256, 257, 511, 512, self.prompt_length - 1]
        return np.unique([p for p in edges if p < self.prompt_length]).astype(np.int32)

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each tensor of the checkpoint by its Hugging Face name."""
        c, random = self.config, np.random.RandomState(self.seed)
        hidden, inner, dim = c["hidden_size"], c["intermediate_size"], self.head_dim
        q_rows, kv_rows = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        tied, bias = c["tie_word_embeddings"], c["attention_bias"]
        qwen2 = c["model_type"] == "qwen2"  # biases on q, k and v, whatever config.json says

        def matrix(rows: int, columns: int, gain: float) -> NDArray[np.float32]:
            return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

        def norm() -> NDArray[np.float32]:
            return random.uniform(0.5, 1.5, hidden).astype(np.float32)

        def linear(
            name: str, rows: int, columns: int, gain: float, bias: bool
        ) -> Iterator[tuple[str, NDArray[np.float32]]]:
            yield f"{name}.weight", matrix(rows, columns, gain)
            if bias:
                yield f"{name}.bias", (random.standard_normal(rows) * 0.4).astype(np.float32)

        embed = matrix(c["vocab_size"], hidden, 2.5 if tied else np.sqrt(hidden))
        yield ("lm_head.weight" if self.stored_head else "model.embed_tokens.weight"), embed
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            yield f"{layer}.input_layernorm.weight", norm()
            yield from linear(f"{layer}.self_attn.q_proj", q_rows, hidden, 1.4, bias or qwen2)
            yield from linear(f"{layer}.self_attn.k_proj", kv_rows, hidden, 1.4, bias or qwen2)
            yield from linear(f"{layer}.self_attn.v_proj", kv_rows, hidden, 1.4, bias or qwen2)
            yield from linear(f"{layer}.self_attn.o_proj", hidden, q_rows, 1.4, bias and not qwen2)
            yield f"{layer}.post_attention_layernorm.weight", norm()
            yield from linear(f"{layer}.mlp.gate_proj", inner, hidden, 1.4, c["mlp_bias"])
            yield from linear(f"{layer}.mlp.up_proj", inner, hidden, 1.4, c["mlp_bias"])
            yield from linear(f"{layer}.mlp.down_proj", hidden, inner, 1.4, c["mlp_bias"])
        yield "model.norm.weight", norm()
        if not tied:
            yield "lm_head.weight", matrix(c["vocab_size"], hidden, 2.5)

    def write(self, directory: Path) -> Path:
        """Write the model as a Hugging Face directory and return it."""
        from safetensors.numpy import save_file

        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config, indent=2))
        (directory / "tokenizer.json").write_text(json.dumps(word_tokenizer(self.config["vocab_size"])))
        save_file(dict(self.tensors()), directory / "model.safetensors", metadata={"format": "pt"})
        return directory


def word_tokenizer(vocab: int) -> dict[str, Any]:
    """Return a tokenizer.json in which token i is the word ``ti``."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(vocab)}, "unk_token": "t0"},
    }


def config_json(
    *, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """Return a config.json; ``more`` adds to it or replaces what it says."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 640,
        "rms_norm_eps": 0.03,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
    } | more


LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# Heads of 16 that do not add up to the hidden size, three queries to a group, every bias, widths that are no multiple
# of a panel or a group, and a prompt that reaches into the third split of attention.
BIASED = Case(
    "biased",
    seed=2,
    prompt_length=530,
    config=config_json(
        hidden=72,
        inner=172,
        layers=2,
        heads=6,
        kv_heads=2,
        vocab=320,
        head_dim=16,
        attention_bias=True,
        mlp_bias=True,
        rope_theta=10000.0,
    ),
)

# Llama 3's rope scaling past its original context, written as transformers 5 does; tied, with only lm_head stored;
# head_dim derived and no multiple of 16.
LLAMA3 = Case(
    "llama3",
    seed=1,
    prompt_length=300,
    config=config_json(
        hidden=96,
        inner=160,
        layers=2,
        heads=8,
        kv_heads=4,
        vocab=257,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, **LLAMA3_SCALING},
    ),
    stored_head=True,
)

# One key/value head for all queries, linear rope scaling as older files write it, biases in attention alone.
LINEAR = Case(
    "linear",
    seed=1,
    prompt_length=300,
    config=config_json(
        hidden=64,
        inner=96,
        layers=3,
        heads=4,
        kv_heads=1,
        vocab=300,
        head_dim=32,
        attention_bias=True,
        rope_theta=500.0,
        rope_scaling={"type": "linear", "factor": 4.0},
    ),
)

# Qwen2: biases on q, k and v alone, tied embeddings, seven queries to a group.
QWEN2 = Case(
    "qwen2",
    seed=2,
    prompt_length=300,
    config=config_json(
        hidden=112,
        inner=208,
        layers=2,
        heads=14,
        kv_heads=2,
        vocab=271,
        tie_word_embeddings=True,
        rope_theta=1000000.0,
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        use_sliding_window=False,
        sliding_window=32,
        max_window_layers=1,
    ),
)

CASES = (BIASED, LLAMA3, LINEAR, QWEN2)


def random_case(seed: int) -> Case:
    """Draw a shape for the live comparison."""
    random = np.random.RandomState(seed)

    def pick(*values: Any) -> Any:
        return values[random.randint(len(values))]

    kv_heads, head_dim = pick(1, 2, 3), pick(4, 8, 16, 20, 64)
    heads = kv_heads * pick(1, 2, 4)
    more: dict[str, Any] = pick(
        {"rope_theta": 10000.0},
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}},
    )
    config = config_json(
        hidden=heads * -(-pick(32, 56, 64, 100, 128) // heads),  # transformers wants a multiple of the heads
        inner=pick(48, 96, 172, 200),
        layers=pick(1, 2, 3),
        heads=heads,
        kv_heads=kv_heads,
        vocab=pick(64, 257, 400),
        head_dim=head_dim,
        attention_bias=pick(False, True),
        mlp_bias=pick(False, True),
        tie_word_embeddings=pick(False, True),
        rms_norm_eps=pick(1e-6, 1e-5, 0.05),
        **more,
    )
    return Case(f"random-{seed}", seed=seed, prompt_length=pick(40, 270, 520), config=config)
