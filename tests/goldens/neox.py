"""GPT-NeoX and Pythia: config.json as it is published, and reduced shapes of it, as ``families`` has of the core's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from goldens.shapes import Case
from numpy.typing import NDArray

PYTHIA_70M: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
"""EleutherAI/pythia-70m."""
NEOX_20B: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "attention_probs_dropout_prob": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu_fast",
    "hidden_dropout_prob": 0,
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 24576,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.19.0.dev0",
    "use_cache": True,
    "vocab_size": 50432,
}
"""EleutherAI/gpt-neox-20b."""


class NeoXCase(Case):
    """A case whose tensors are those of GPT-NeoX."""

    context = 0  # of the engine: as long as the model allows

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each tensor of the checkpoint by its Hugging Face name."""
        c, random = self.config, np.random.RandomState(self.seed)
        hidden, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]

        def matrix(rows: int, columns: int, gain: float = 1.4) -> NDArray[np.float32]:
            return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

        def vector(size: int) -> NDArray[np.float32]:
            return (random.standard_normal(size) * 0.4).astype(np.float32)

        def norm(name: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
            yield f"{name}.weight", random.uniform(0.5, 1.5, hidden).astype(np.float32)
            yield f"{name}.bias", vector(hidden)

        yield "gpt_neox.embed_in.weight", matrix(vocab, hidden, float(np.sqrt(hidden)))
        for i in range(c["num_hidden_layers"]):
            layer = f"gpt_neox.layers.{i}"
            yield from norm(f"{layer}.input_layernorm")
            yield from norm(f"{layer}.post_attention_layernorm")
            for name, rows, columns in (
                ("attention.query_key_value", 3 * hidden, hidden),
                ("attention.dense", hidden, hidden),
                ("mlp.dense_h_to_4h", inner, hidden),
                ("mlp.dense_4h_to_h", hidden, inner),
            ):
                yield f"{layer}.{name}.weight", matrix(rows, columns)
                if "mlp" in name or c.get("attention_bias", True):
                    yield f"{layer}.{name}.bias", vector(rows)
        yield from norm("gpt_neox.final_layer_norm")
        yield "embed_out.weight", matrix(vocab, hidden, 2.5)


def _case(name: str, seed: int, **changes: Any) -> NeoXCase:
    sizes = {"hidden_size": 96, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 3}
    small = {"vocab_size": 271, "max_position_embeddings": 640, "layer_norm_eps": 0.01, "torch_dtype": "float32"}
    config = {**PYTHIA_70M, **sizes, **small, "eos_token_id": None, **changes}
    return NeoXCase(name, seed=seed, prompt_length=300, config=config)


NEOX = _case("neox", 2)
NEOX_SEQUENTIAL = _case(
    "neox-sequential",
    1,
    use_parallel_residual=False,
    attention_bias=False,
    hidden_act="gelu_fast",
    rotary_pct=0.75,
    rotary_emb_base=500,
)
NEOX_CASES = (NEOX, NEOX_SEQUENTIAL)
