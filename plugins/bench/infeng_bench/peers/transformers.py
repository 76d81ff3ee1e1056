"""transformers on PyTorch, eager: what people have before they look for an engine.

The upper half describes the environment and runs in ours; ``open_model`` runs in the peer's.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

NAME = "transformers"
ABOUT = "transformers on PyTorch, eager bf16: a baseline"
REQUIREMENTS = ("torch==2.13.0", "transformers==5.23.0", "peft>=0.17", "safetensors>=0.4.3")
PIP_OPTIONS = ()
UNWANTED = ()
IMPORTS = ("torch", "transformers", "peft")
NEEDS_COMPILER = False
FORMATS = dict.fromkeys(("int4-g64", "int4-g32", "int8-row", "bf16", "f16", "f32"), "bf16")
"""It has no CPU path for quantized weights: every format stands against bf16."""

OPTIONS = {"dtype": "bfloat16", "attention": "sdpa"}
"""``dtype`` bfloat16 or float32, ``attention`` sdpa or eager."""


def build_environment(features: Collection[str], gcc: int | None) -> dict[str, str]:
    """Return environment variables of the installation: none, for nothing is compiled."""
    return {}


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return no command: it reads the Hugging Face directory itself."""
    return []


def model_path(folder: Path) -> Path:
    """Return what ``open_model`` takes: here the directory of the weights."""
    return folder


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load a Hugging Face directory."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[options["dtype"]]
    weights: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, attn_implementation=options["attention"]
    )
    weights.eval()
    config = weights.config
    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    class Transformers:
        vocab = config.vocab_size

        def introduction(self) -> dict[str, Any]:
            sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in weights.named_parameters()}
            total = sum(sizes.values())
            unread = 0 if config.tie_word_embeddings else sizes["model.embed_tokens.weight"]
            return {
                "version": f"{transformers.__version__}, torch {torch.__version__}",
                "kernels": [torch.backends.cpu.get_cpu_capability()],
                "bytes_per_token": total - unread,
                "details": {
                    "weight_bytes": total,
                    "kv_bytes_per_position": 2 * layers * heads * width * dtype.itemsize,
                },
            }

        def prepare(self, kind: str, rows: int, positions: int) -> None:
            self.cache: Any = None

        def start(self, prompts: list[list[int]]) -> None:
            self.cache = transformers.DynamicCache()
            self._forward(torch.tensor(prompts))

        def step(self) -> int:
            self._forward(self.last)
            return len(self.last)

        def stop(self) -> None:
            self.cache = None

        @torch.inference_mode()
        def _forward(self, ids: Any) -> None:
            out = weights(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.last = out.logits[:, -1].argmax(-1, keepdim=True)

    return Transformers()
