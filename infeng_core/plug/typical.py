"""Problems that a model of the Llama family poses, for explaining choices without loading one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from infeng_core._native import Problem
from infeng_core.plug.config import EngineConfig
from infeng_core.plug.problems import MAX_STACKED_RANK, Fields, problem, row_ranges

FormatOf = Callable[[str], str]
"""Tensor name to weight format."""


@dataclass(frozen=True)
class Shape:
    """The sizes that matter; by default those of TinyLlama-1.1B."""

    hidden: int = 2048
    intermediate: int = 5632
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 64
    vocab: int = 32000
    context: int = 2048
    bias: bool = False
    tied: bool = False


def typical(op: str, config: EngineConfig, shape: Shape, format_of: FormatOf) -> list[Problem]:
    """Return the problems of ``op`` under ``config``, by row range; ``format_of`` gives the format of a tensor."""
    ranges = row_ranges(config.scheduler.max_batch_tokens)
    asked = globals()[f"_{op}"](config, shape, format_of)
    return [problem({"op": op, "rows": list(rows), **fields}) for fields in asked for rows in ranges]


# One function per operation: what a model asks of it, fully fused.


def _embed(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    yield {"weight": format_of("embed"), "n": _up(shape.vocab), "k": shape.hidden}


def _rmsnorm(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    yield {"n": shape.hidden, "k": shape.hidden, **_quantize(format_of("layers.0.qkv_proj"))}


def _linear(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    attention, kv = _up(shape.heads * shape.head_dim), _up(shape.kv_heads * shape.head_dim)
    gate_up = ["silu_mul", *_quantize(format_of("layers.0.down_proj")).get("epilogues", ())]
    for name, n, k, steps in (
        ("layers.0.qkv_proj", attention + 2 * kv, shape.hidden, ["bias"] if shape.bias else []),
        ("layers.0.o_proj", _up(shape.hidden), shape.heads * shape.head_dim, ["residual"]),
        ("layers.0.gate_up_proj", 2 * _up(shape.intermediate), shape.hidden, gate_up),
        ("layers.0.down_proj", _up(shape.hidden), shape.intermediate, ["residual"]),
        ("embed" if shape.tied else "lm_head", _up(shape.vocab), shape.hidden, []),
    ):
        steps = ["lora", *steps] if config.adapters.max_resident else steps
        fused = {"epilogues": steps, **_needs(config, steps)} if steps else {}
        yield {"weight": format_of(name), "act": _act(format_of(name)), "n": n, "k": k, **fused}


def _epilogue(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    adapters = ("lora",) if config.adapters.max_resident else ()
    for step in (*adapters, "residual", "quantize"):
        yield {"n": _up(shape.hidden), "k": _up(shape.hidden), "epilogues": [step], **_needs(config, [step])}


def _rope(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    yield {"heads": shape.heads, **_cache(shape)}


def _kv_append(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    yield {"kv": config.kv_cache.dtype, **_cache(shape)}


def _attention(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    fused = _quantize(format_of("layers.0.o_proj")) if shape.head_dim % 64 == 0 else {}
    yield {"kv": config.kv_cache.dtype, "heads": shape.heads, **_cache(shape), **fused}


def _shrink(config: EngineConfig, shape: Shape, format_of: FormatOf) -> Iterator[Fields]:
    weight = "int8-row" if config.adapters.dtype == "int8" else config.adapters.dtype
    if config.adapters.max_resident:
        yield {"weight": weight, "act": _act(weight), "n": MAX_STACKED_RANK, "k": shape.hidden}


def _needs(config: EngineConfig, steps: Sequence[str]) -> Fields:
    return {"needs": [f"lora_{config.adapters.dtype}"]} if "lora" in steps else {}


def _cache(shape: Shape) -> Fields:
    return {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "context": shape.context}


def _quantize(weight: str) -> Fields:
    """Return the epilogue that makes what a weight of this format reads."""
    return {"epilogues": ["quantize"]} if _act(weight) != "f32" else {}


def _act(weight: str) -> str:
    return "f32" if weight in ("f32", "bf16") else "int8-g64"


def _up(n: int) -> int:
    return -(-n // 16) * 16
