"""Llama 2 and 3: pre-norm blocks of rotary grouped-query attention and a gated SiLU feed-forward layer."""

from __future__ import annotations

from infeng_core.models.decoder import graph

__all__ = ["ARCHITECTURES", "FAMILY", "graph"]

FAMILY = "llama"
ARCHITECTURES = ("LlamaForCausalLM",)
