"""The experts of a mixture's layers as a program of the engine, on rows with given choices of experts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from infeng_bench.kernels import programs
from infeng_bench.models.model_shape import ModelShape
from infeng_bench.reports import results
from infeng_bench.reports.machine import kernel_features
from infeng_core.api import EngineConfig, Plugins, UsageError, formats
from infeng_core.api.engines import Limits
from infeng_core.api.kernels import KvCache, Selector, plan

LAYERS = 4  # with weights of their own, so that a layer has left the caches when its turn comes again
READ, MOST_PASSES = 1 << 31, 32  # bytes of weights that one reading goes through, in at most so many passes
LINE = 64  # bytes that weights are aligned to
NOTHING = np.zeros(0, np.int32)


class Experts:
    """Layers of a model from the router's scores to the weighted sum: rounding, sorting, both linears, the gates."""

    def __init__(
        self,
        shape: ModelShape,
        lookup: formats.FormatLookup,
        plugins: Plugins,
        config: EngineConfig,
        rows: int,
        threads: int,
    ) -> None:
        """Bind kernels as an engine would and make random weights. rows: the most in a batch.

        Raises UsageError for a model without experts.
        """
        sizes, most = shape.config, max(rows, config.scheduler.max_batch_tokens)
        if not sizes.experts:
            raise UsageError(shape.name, "it has no experts", "give a mixture of experts, such as qwen3-30b-a3b")
        whole = formats.families()[sizes.family].graph(sizes)
        ops = [op for op in whole.ops if isinstance(op, formats.Route | formats.ExpertLinear | formats.Combine)][
            : 4 * LAYERS
        ]
        names = {op.weight for op in ops if isinstance(op, formats.ExpertLinear)}
        specs = [spec for spec in formats.layout(sizes).tensors if spec.name in names]
        tensors = {spec.name: random_tensor(spec, shape.formats[spec.name], lookup) for spec in specs}
        vectors = {one.name: np.zeros(one.size, np.float32) for one in formats.layout(sizes).vectors}
        self.quant, self.layers = tensors[specs[0].name].quant, len(specs) // 2
        self.size = {"hidden": sizes.hidden, "intermediate": sizes.expert_intermediate}
        self.size |= {"experts": sizes.experts, "top_k": sizes.experts_per_token}
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        self._nbytes = nbytes // self.layers // sizes.experts  # of an expert
        [router], [x] = ({getattr(op, name) for op in ops if isinstance(op, formats.Route)} for name in ("logits", "x"))
        alone = tuple(one for op in ops for one in _alone(op, self.quant.is_float))
        graph = formats.Graph(whole.values, alone, ops[-1].out, inputs=(router, x))
        model = formats.LoadedModel(sizes, Path(), tensors, vectors, Path(), shape.formats, nbytes, "")
        limits = Limits(max_rows=most, max_samples=1, max_segments=1, context=most, kv_blocks=1)
        unused = KvCache(config.kv_cache.dtype, layers=1, blocks=1, **sizes.cache_heads)
        self._selector = Selector(plugins, config, plugins.cpu)
        pool = programs.pool(config, threads)
        self.program, planner, out = plan(model, config, limits, self._selector, pool, unused, graph=graph)
        self.program.finish()
        self._scores = self.program.view(planner.buffer(router))[:, : sizes.experts]
        self.x, self.out = self.program.view(planner.buffer(x)), self.program.view(out)
        self.x[:] = np.random.default_rng(0).standard_normal(self.x.shape, np.float32)
        bound = planner.binder.bound_ops()
        self.introduction: dict[str, Any] = {"kernels": results.kernels(bound)}
        self.introduction["details"] = {"kernel_features": kernel_features(self._selector, bound)}

    def close(self) -> None:
        """End the processes that tried libraries."""
        self._selector.close()

    def work(self, rows: int) -> tuple[int, int]:
        """Return the multiply-adds of a layer on ``rows`` rows, and the bytes of the experts that they go to.

        R rows that choose k of E experts go to E (1 - (1 - k / E)^R) on average.
        """
        experts, top_k = self.size["experts"], self.size["top_k"]
        macs = 3 * rows * top_k * self.size["hidden"] * self.size["intermediate"]
        return macs, round(self._nbytes * experts * (1 - (1 - top_k / experts) ** rows))

    def passes(self, rows: int) -> int:
        """Return how often one reading goes through all layers."""
        return min(MOST_PASSES, max(1, READ // (self.layers * self.work(rows)[1])))

    def run(self, rows: int, passes: int, seed: int) -> float:
        """Send ``rows`` rows through all layers, ``passes`` times with other experts; return the seconds."""
        seconds, zeros, none = 0.0, np.zeros(rows, np.int32), np.zeros((0, 4), np.int32)
        for scores in np.random.default_rng(seed).random((passes, rows, self.size["experts"]), np.float32):
            self._scores[:rows] = scores
            begin = time.perf_counter()
            self.program.run(zeros, zeros, none, NOTHING, NOTHING)
            seconds += time.perf_counter() - begin
        return seconds


def _alone(op: formats.Op, is_float: bool) -> list[formats.Op]:
    """Return an op without what comes before and after a layer's experts; their input is rounded by itself."""
    if isinstance(op, formats.Combine):
        return [replace(op, steps=(), shared="", gate="")]
    return [formats.Apply(op.x, op.x, ()), op] if isinstance(op, formats.Route) and not is_float else [op]


def random_tensor(spec: formats.TensorSpec, format: str, lookup: formats.FormatLookup) -> formats.PackedTensor:
    """Return the weights of all experts, equal random ones in memory of their own: speed does not depend on values."""
    quant = lookup(format)
    size, panels = quant.panel_bytes(spec.k), spec.panels // spec.experts
    values = np.random.default_rng(0).standard_normal((16 * panels, spec.k), np.float32) * np.float32(0.02)
    one = np.empty(panels * size, np.uint8)
    quant.pack(values, one)
    memory = np.empty(spec.panels * size + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    memory[begin : begin + spec.panels * size].reshape(spec.experts, -1)[:] = one
    return formats.PackedTensor(spec.name, format, spec.n, spec.k, spec.panels, size, memory, begin, quant)
