"""PyTorch on the CPU (oneDNN, MKL) as an oracle of single ops; run by the Python of an environment with PyTorch.

The protocol is one JSON object per line. The first line of output is {"ready", "engine", "version", "types": {op:
[number types]}}. Each line of input gets one line of output:
{"make": "linear", "type", "n", "k", "rows", "footprint"} and
{"make": "attention", "type", "sequences", "queries", "context", "heads", "kv_heads", "head_dim", "copies"} get
{"id", "name", "calls", "nbytes"}; {"run": id} gets {"seconds"}; {"clear": true} gets {}. The process ends with its
input.
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
Made = tuple[str, int, int, Step]  # name, op calls of a step, bytes that one call reads, the step


def linear(kind: str, n: int, k: int, rows: int, footprint: int) -> Made:
    """Return x W^T over copies of W of ``footprint`` bytes together."""
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
    """Return PyTorch's dynamic int8 linear: a weight scale per output, activations quantized in the op."""
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
    """Return the answer to one line of input."""
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
    """Answer lines until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    torch.set_num_threads(parser.parse_args().threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=UserWarning)  # int8 tensors' interface will change
    made: list[Step] = []
    print(json.dumps({"ready": True, "engine": "torch", "version": torch.__version__, "types": TYPES}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                said = answer(json.loads(line), made)
            except Exception as error:  # any error becomes an answer
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
