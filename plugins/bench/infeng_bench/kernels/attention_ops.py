"""Programs that consist of attention only, layer after layer as in the model, over a filled KV cache."""

from __future__ import annotations

from infeng_inspect.api import OneOp

from infeng_bench.engine.work import Work
from infeng_bench.kernels.programs import Choice, Choices, KernelProgram, pool
from infeng_core.api import EngineConfig
from infeng_core.api import kernels as kernels_api
from infeng_core.api.formats import FormatLookup, ModelConfig, format_lookup

BLOCK = 16


class AttentionOps:
    """Attention over one cache format."""

    def __init__(self, config: EngineConfig, wanted: list[str], threads: int) -> None:
        """Choose kernels under ``config``; ``wanted`` as in ``Choices``."""
        self.kv = config.kv_cache.dtype
        self.threads = threads
        self._chunk = config.scheduler.max_batch_tokens
        self._choices = Choices(config, "attention", wanted)
        self._pool = pool(config, threads)

    @property
    def lookup(self) -> FormatLookup:
        """Weight formats by name."""
        return format_lookup(self._choices.plugins)

    def close(self) -> None:
        """End the processes that tried libraries."""
        self._choices.close()

    def subjects(self, shape: ModelConfig, work: Work) -> tuple[list[Choice], list[KernelProgram]]:
        """Return the kernels for ``work`` and a program for each; all read the same cache."""
        steps = self.steps(work)
        rows = max(sum(count for count, _ in step) for step in steps)
        sizes = {"kv": self.kv, **shape.cache_heads, "context": work.context}
        kernels = self._choices.of(rows, workers=self.threads, heads=shape.heads, **sizes)
        case = {"op": "attention", "rows": [1, rows], "heads": shape.heads, **sizes}
        ours: list[KernelProgram] = []
        for choice in kernels:
            like = ours[0].op if ours else None
            op = OneOp(
                case,
                choice.kernel,
                self._choices.reference,
                steps,
                pool=self._pool,
                calls=shape.layers,
                copies=shape.layers,
                like=like,
            )
            ours.append(KernelProgram(choice.name, op))
        return kernels, ours

    def steps(self, work: Work) -> list[list[tuple[int, int]]]:
        """Return the steps as (rows, position) by sequence: one decode step, or the engine's prefill chunks."""
        if work.kind == "decode":
            return [[(1, work.context - 1)] * work.rows]
        return [
            [(0, 0)] * prompt + [(min(self._chunk, work.context - start), start)]
            for prompt in range(work.rows)
            for start in range(0, work.context, self._chunk)
        ]


def macs(shape: ModelConfig, work: Work) -> int:
    """Return the multiply-adds of one layer: two per head, dimension, row and attended position."""
    attended = work.context if work.kind == "decode" else work.context * (work.context + 1) // 2
    return shape.heads * (shape.head_dim + (shape.v_head_dim or shape.head_dim)) * work.rows * attended


def kv_bytes(shape: ModelConfig, work: Work, kv: str) -> int:
    """Return the distinct bytes of one layer's cache that ``work`` reads."""
    block = kernels_api.KvCache.bytes_per_block(kv, layers=1, **shape.cache_heads)
    return work.rows * work.context * block // BLOCK


def oracle_size(shape: ModelConfig, work: Work) -> dict[str, int]:
    """Return the sizes of a work in the form of ``Oracle.attention``."""
    return {
        "sequences": work.rows,
        "queries": 1 if work.kind == "decode" else work.context,
        "context": work.context,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "copies": shape.layers,
    }
