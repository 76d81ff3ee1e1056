"""kTransformers' experts on the CPU (kt-kernel), an oracle; run by the Python of an environment with that wheel.

The protocol is one JSON object per line. The first line of output is {"ready", "engine", "version", "types":
{"experts": [number types]}}. Each line of input gets one line of output: {"make": "experts", "type", "hidden",
"intermediate", "experts", "top_k", "layers", "rows"} gets {"id", "name", "calls", "nbytes"}; {"run": id, "rows",
"passes", "seed"} gets {"seconds"} of that many passes over all layers. The process ends with its input.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = {"int4": "AMXInt4_MOE", "int8": "AMXInt8_MOE", "bf16": "AMXBF16_MOE"}  # without AMX they use AVX-512
BITS = {"int4": 4, "int8": 8, "bf16": 16}
STEP = {"int4": 128, "int8": 64, "bf16": 32}  # what sizes are multiples of; others are rounded up
BLOCK = 32  # rows; the most rows are a multiple
REST = 0.9  # of the shortest time so far in which the waiting thread sleeps, because kt-kernel's own waiting spins


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def chosen(scores: NDArray[np.float32], top_k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the experts with the largest ``scores``, (..., experts), and their softmax shares, each (..., top_k)."""
    ids = np.ascontiguousarray(np.argsort(-scores, axis=-1, kind="stable")[..., :top_k])
    shares = np.exp(np.take_along_axis(scores, ids, axis=-1))
    return ids, shares / shares.sum(axis=-1, keepdims=True)


def extension() -> tuple[Any, str]:
    """Return kt-kernel's compiled part for this processor and its name; the package itself would import PyTorch."""
    package = importlib.util.find_spec("kt_kernel")
    if package is None or not package.submodule_search_locations:
        raise ImportError("kt_kernel is not installed")
    path = Path(package.submodule_search_locations[0], "_cpu_detect.py")
    spec = importlib.util.spec_from_file_location("infeng_kt_detect", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[Any, str] = module.initialize()
    return found


class Experts:
    """Layers of experts with weights of their own."""

    def __init__(self, kt: Any, infer: Any, kind: str, experts: int, top_k: int, rows: int, **size: int) -> None:
        """Quantize random weights. rows: the most in a batch. size: ``hidden, intermediate, layers``."""
        hidden, inner = (-(-size[name] // STEP[kind]) * STEP[kind] for name in ("hidden", "intermediate"))
        random = np.random.default_rng(0)
        drawn = bf16(random.standard_normal(1 << 20, np.float32) * np.float32(0.02))
        weights = np.resize(drawn, experts * hidden * inner)
        self.x, self.out = bf16(random.standard_normal((rows, hidden), np.float32)), np.zeros((rows, hidden), np.uint16)
        self.name = f"{CLASSES[kind]} {hidden}x{inner}"
        self.nbytes = 3 * hidden * inner * BITS[kind] // 8  # of an expert
        self._infer, self._experts, self._top_k = infer, experts, top_k
        self._shortest: dict[tuple[int, int], float] = {}
        config = kt.moe.MOEConfig(experts, top_k, hidden, inner, 0)
        config.max_len = -(-rows // BLOCK) * BLOCK
        config.pool = infer.backend_
        config.gate_proj = config.up_proj = config.down_proj = weights.ctypes.data
        order = np.arange(experts, dtype=np.int64)
        self.layers = [getattr(kt.moe, CLASSES[kind])(config) for _ in range(size["layers"])]
        for layer in self.layers:
            infer.submit(layer.load_weights_task(order.ctypes.data))
            infer.sync()

    def run(self, rows: int, passes: int, seed: int) -> float:
        """Send ``rows`` rows through all layers, ``passes`` times with other experts; return the seconds."""
        scores = np.random.default_rng(seed).random((passes, rows, self._experts), np.float32)
        ids, shares = chosen(scores, self._top_k)
        count, pointers = np.array([rows], np.int64), (self.x.ctypes.data, self.out.ctypes.data, False)
        size = count.ctypes.data
        self.out[:rows] = 0
        begin = time.perf_counter()
        for one, share in zip(ids, shares, strict=True):
            for layer in self.layers:
                self._infer.submit(layer.forward_task(size, self._top_k, one.ctypes.data, share.ctypes.data, *pointers))
        shortest = self._shortest.get((rows, passes), 0.0)
        time.sleep(max(0.0, REST * shortest - (time.perf_counter() - begin)))
        self._infer.sync()
        seconds = time.perf_counter() - begin
        self._shortest[rows, passes] = min(shortest or seconds, seconds)
        made = (self.out[:rows].astype(np.uint32) << 16).view(np.float32)
        if not (np.isfinite(made).all() and made.any(axis=1).all()):
            raise RuntimeError(f"{self.name} wrote no finite result for {rows} rows")
        return seconds


def main() -> None:
    """Answer lines until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    threads = parser.parse_args().threads
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # kt-kernel prints

    def say(data: dict[str, Any]) -> None:
        print(json.dumps(data), file=answers, flush=True)

    kt, variant = extension()
    pool = kt.WorkerPoolConfig()
    pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [threads]
    infer = kt.CPUInfer(pool)
    version = f"{metadata.version('kt-kernel')} ({variant})"
    say({"ready": True, "engine": "kt_kernel", "version": version, "types": {"experts": list(CLASSES)}})
    made: list[Experts] = []
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.pop("make", None):
                made.append(Experts(kt, infer, request.pop("type"), **request))
                answer = {"id": len(made) - 1, "name": made[-1].name, "calls": 1, "nbytes": made[-1].nbytes}
            else:
                answer = {"seconds": made[request.pop("run")].run(**request)}
        except Exception as error:  # any error becomes an answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)
    os._exit(0)  # its threads spin, and some wait for others that have ended


if __name__ == "__main__":
    main()
