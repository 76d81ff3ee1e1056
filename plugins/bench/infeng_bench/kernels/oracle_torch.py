"""PyTorch on the CPU (oneDNN, MKL) as an oracle of single ops; run by the Python of an environment that has it.

One JSON object per line. Out first: {"ready", "engine", "version", "types": {op: [number types]}}. In:
{"make": "linear", "type", "n", "k", "rows", "footprint"} or
{"make": "attention", "type", "sequences", "queries", "context", "heads", "kv_heads", "head_dim", "copies"},
answered by {"id", "name", "calls", "nbytes"}; {"run": id} by {"seconds"}; {"clear": true} by {}. The end of the input
ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

TYPES = {"linear": ["int8", "bf16", "f32"], "attention": ["bf16", "f32"]}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
BYTES = {"int8": 1, "bf16": 2, "f32": 4}

Step = Callable[[], None]
Made = tuple[str, int, int, Step]  # name, calls of a step, bytes that one call reads, and the step itself


def linear(kind: str, n: int, k: int, rows: int, footprint: int) -> Made:
    """Return x W^T over weights of ``footprint`` bytes altogether."""
    copies = max(1, -(-footprint // (n * k * BYTES[kind])))
    if kind == "int8":
        return "int8 dynamic", copies, n * k, int8_linear(n, k, rows, copies)
    dtype = DTYPES[kind]
    weights = [torch.randn(n, k).mul_(0.02).to(dtype) for _ in range(copies)]
    x = torch.randn(rows, k).to(dtype)

    def step() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)

    return kind, copies, n * k * BYTES[kind], step


def int8_linear(n: int, k: int, rows: int, copies: int) -> Step:
    """Weights with a scale per output, activations quantized on the way in: PyTorch's dynamic int8 linear."""
    source = torch.randn(n, k).mul_(0.02)
    scales = source.abs().amax(dim=1).div(127).clamp(min=1e-8)
    quantized = torch.quantize_per_channel(source, scales, torch.zeros(n, dtype=torch.int64), 0, torch.qint8)
    packed = [torch.ops.quantized.linear_prepack(quantized, None) for _ in range(copies)]
    x = torch.randn(rows, k)

    def step() -> None:
        for weight in packed:
            torch.ops.quantized.linear_dynamic(x, weight, False)

    return step


def attention(
    kind: str, sequences: int, queries: int, context: int, heads: int, kv_heads: int, head_dim: int, copies: int
) -> Made:
    """Return scaled dot-product attention of the last ``queries`` of ``context`` positions."""
    dtype = DTYPES[kind]
    caches = [[torch.randn(sequences, kv_heads, context, head_dim).to(dtype) for _ in range(2)] for _ in range(copies)]
    q = torch.randn(sequences, heads, queries, head_dim).to(dtype)
    is_causal = queries > 1
    if is_causal and queries != context:
        raise ValueError("torch attends causally from the first position on: queries must be all of the context")

    def step() -> None:
        for k, v in caches:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=heads != kv_heads)

    return f"sdpa {kind}", copies, 2 * sequences * kv_heads * context * head_dim * BYTES[kind], step


MAKERS: dict[str, Callable[..., Made]] = {"linear": linear, "attention": attention}


def answer(request: dict[str, Any], made: list[Step]) -> dict[str, Any]:
    """Do what one line asks for."""
    if "make" in request:
        name, calls, nbytes, step = MAKERS[request.pop("make")](request.pop("type"), **request)
        made.append(step)
        return {"id": len(made) - 1, "name": name, "calls": calls, "nbytes": nbytes}
    if "run" in request:
        start = time.perf_counter()
        made[request["run"]]()
        return {"seconds": time.perf_counter() - start}
    made.clear()
    return {}


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    torch.set_num_threads(parser.parse_args().threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=UserWarning)  # that int8 tensors will get another interface
    made: list[Step] = []
    print(json.dumps({"ready": True, "engine": "torch", "version": torch.__version__, "types": TYPES}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                said = answer(json.loads(line), made)
            except Exception as error:  # whatever it is, the other side shall read it
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
