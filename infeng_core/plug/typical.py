"""Problems that a model of the Llama family poses, for explaining choices without loading one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from infeng_core._native import Problem
from infeng_core.plug.config import EngineConfig
from infeng_core.plug.problems import Fields, problem

ROW_BREAKPOINTS = (1, 8, 64)
"""Batch sizes, in rows, up to which one kernel is bound: a decode, a few, a crowd; above them prefill."""


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


def row_ranges(most: int) -> list[tuple[int, int]]:
    """Return (1, 1), (2, 8), ... up to ``most`` rows."""
    ends = [*(end for end in ROW_BREAKPOINTS if end < most), most]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def typical(op: str, config: EngineConfig, shape: Shape) -> list[Problem]:
    """Return the problems of ``op`` under ``config``, by row range; of every op that an adapter-free model has."""
    ranges = row_ranges(config.scheduler.max_batch_tokens)
    return [
        problem({"op": op, "rows": list(rows), **fields}) for fields in _fields(op, config, shape) for rows in ranges
    ]


def _fields(op: str, config: EngineConfig, shape: Shape) -> Iterator[Fields]:
    attention, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    gate = _format("layers.0.gate_up_proj", config)
    quantize = {"epilogues": ["quantize"]}
    if op == "embed":
        yield {"weight": _format("embed", config), "n": _up(shape.vocab), "k": shape.hidden}
    elif op == "rmsnorm":
        quantized = _act(_format("layers.0.qkv_proj", config)) != "f32"
        yield {"n": shape.hidden, "k": shape.hidden, **(quantize if quantized else {})}
    elif op == "linear":
        bias = {"epilogues": ["bias"]} if shape.bias else {}
        fused = ["silu_mul", "quantize"] if _act(_format("layers.0.down_proj", config)) != "f32" else ["silu_mul"]
        yield {**_linear("layers.0.qkv_proj", config), "n": _up(attention + 2 * kv), "k": shape.hidden, **bias}
        for name, k in (("o_proj", attention), ("down_proj", shape.intermediate)):
            yield {**_linear(f"layers.0.{name}", config), "n": _up(shape.hidden), "k": k, "epilogues": ["residual"]}
        yield {
            "weight": gate,
            "act": _act(gate),
            "n": 2 * _up(shape.intermediate),
            "k": shape.hidden,
            "epilogues": fused,
        }
        yield {**_linear("lm_head", config), "n": _up(shape.vocab), "k": shape.hidden}
    elif op == "epilogue":
        yield {"n": _up(shape.hidden), "k": _up(shape.hidden), "epilogues": ["residual"]}
        yield {"n": _up(shape.hidden), "k": _up(shape.hidden), **quantize}
    elif op == "rope":
        heads = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
        yield {**heads, "context": shape.context}
    elif op == "kv_append":
        sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "context": shape.context}
        yield {"kv": config.kv_cache.dtype, **sizes}
    elif op == "attention":
        sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "context": shape.context}
        fuses = _act(_format("layers.0.o_proj", config)) != "f32" and shape.head_dim % 64 == 0
        yield {"kv": config.kv_cache.dtype, "heads": shape.heads, **sizes, **(quantize if fuses else {})}
    elif op == "shrink":
        weight = config.adapters.dtype if config.adapters.dtype != "int8" else "int8-row"
        yield {"weight": weight, "act": "int8-g64" if weight == "int8-row" else "f32", "n": 16, "k": shape.hidden}


def _linear(name: str, config: EngineConfig) -> Fields:
    format = _format(name, config)
    return {"weight": format, "act": _act(format)}


def _format(name: str, config: EngineConfig) -> str:
    """Return the format of a tensor: the last matching pattern of model.formats, else model.format."""
    matches = [format for pattern, format in config.model.formats.items() if fnmatchcase(name, pattern)]
    return matches[-1] if matches else config.model.format


def _act(weight: str) -> str:
    return "f32" if weight in ("f32", "bf16") else "int8-g64"


def _up(n: int) -> int:
    return -(-n // 16) * 16
