"""Programs of nothing but attention, a layer after the other as in the model, over a cache that is filled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_bench.subjects import Batch, Choice, Choices, OneOp, pool
from infeng_bench.works import Work
from infeng_core import api
from infeng_core.api import EngineConfig, FormatLookup, ModelConfig

BLOCK = 16


class Attending:
    """Attention over one cache format."""

    def __init__(self, config: EngineConfig, wanted: list[str], threads: int) -> None:
        """Choose kernels under ``config``; ``wanted`` as in ``Choices``."""
        self.kv = config.kv_cache.dtype
        self.threads = threads
        self._chunk = config.scheduler.max_batch_tokens
        self._choices = Choices(config, "attention", wanted)
        self._appends = Choices(config, "kv_append", [])
        self._pool = pool(config, threads)

    @property
    def lookup(self) -> FormatLookup:
        """Weight formats by name."""
        return self._choices.plugins.quant_format

    def close(self) -> None:
        """End the processes that tried libraries."""
        self._choices.close()
        self._appends.close()

    def subjects(self, shape: ModelConfig, work: Work) -> tuple[list[Choice], list[OneOp]]:
        """Return the kernels for ``work`` and a program of each; all read the same cache."""
        sizes = {"kv": self.kv, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "context": work.context}
        batches = self._batches(work)
        rows = max(len(batch[0]) for batch in batches)
        kernels = self._choices.of(rows, workers=self.threads, heads=shape.heads, **sizes)
        cache = api.KvCache(
            self.kv,
            layers=shape.layers,
            blocks=work.rows * _blocks(work.context),
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )
        self._fill(cache, shape, work, sizes)
        return kernels, [self._program(kernel, cache, shape, work, rows, batches) for kernel in kernels]

    def _program(
        self, choice: Choice, cache: api.KvCache, shape: ModelConfig, work: Work, rows: int, batches: list[Batch]
    ) -> OneOp:
        program = self._empty(work, rows)
        width = shape.heads * shape.head_dim
        x, out = program.buffer(width), program.buffer(width)
        for layer in range(shape.layers):
            scale = float(np.float32(1.0 / math.sqrt(shape.head_dim)))
            program.attention([(rows, choice.kernel)], x, cache, layer, out, heads=shape.heads, scale=scale)
        program.finish()
        program.view(x)[:] = np.random.default_rng(1).standard_normal((rows, width), np.float32)
        return OneOp(choice.name, program, shape.layers, batches)

    def _fill(self, cache: api.KvCache, shape: ModelConfig, work: Work, sizes: dict[str, Any]) -> None:
        """Append random keys and values at every position, in whatever format the cache has."""
        batches = self._batches(Work("prefill", work.rows, work.context))
        rows = max(len(batch[0]) for batch in batches)
        kernel = self._appends.of(rows, workers=self.threads, **sizes)[0].kernel
        program = self._empty(work, rows)
        width = -(-shape.kv_heads * shape.head_dim // BLOCK) * BLOCK
        x = program.buffer(2 * width)
        for layer in range(shape.layers):
            program.kv_append([(rows, kernel)], x, cache, layer, k_column=0, v_column=width)
        program.finish()
        program.view(x)[:] = np.random.default_rng(2).standard_normal((rows, 2 * width), np.float32)
        for batch in batches:
            program.run(*batch)

    def _empty(self, work: Work, rows: int) -> api.Program:
        segments = work.rows if work.kind == "decode" else 1
        return api.Program(self._pool, max_rows=rows, max_samples=1, max_segments=segments, context=work.context)

    def _batches(self, work: Work) -> list[Batch]:
        """Return one batch of a row of each sequence, or for each prompt its chunks, as the engine would cut them."""
        blocks = _blocks(work.context)
        tables = np.arange(work.rows * blocks, dtype=np.int32)
        if work.kind == "decode":
            last = work.context - 1
            return [_batch([(row, row + 1, last, row * blocks) for row in range(work.rows)], tables)]
        starts = range(0, work.context, self._chunk)
        return [
            _batch([(0, min(self._chunk, work.context - start), start, prompt * blocks)], tables)
            for prompt in range(work.rows)
            for start in starts
        ]


def macs(shape: ModelConfig, work: Work) -> int:
    """Return the multiply-adds of one layer: two per head, dimension, row and position that the row attends to."""
    attended = work.context if work.kind == "decode" else work.context * (work.context + 1) // 2
    return 2 * shape.heads * shape.head_dim * work.rows * attended


def kv_bytes(shape: ModelConfig, work: Work, kv: str) -> int:
    """Return the bytes of one layer's cache that are read, each counted once."""
    block = api.KvCache.bytes_per_block(kv, layers=1, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    return work.rows * work.context * block // BLOCK


def oracle_size(shape: ModelConfig, work: Work) -> dict[str, int]:
    """Return what an oracle needs to know of a work."""
    return {
        "sequences": work.rows,
        "queries": 1 if work.kind == "decode" else work.context,
        "context": work.context,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "copies": shape.layers,
    }


def _batch(segments: list[tuple[int, int, int, int]], tables: NDArray[np.int32]) -> Batch:
    positions = np.concatenate([np.arange(at, at + end - begin, dtype=np.int32) for begin, end, at, _ in segments])
    return np.zeros(len(positions), np.int32), positions, np.array(segments, np.int32), tables, np.zeros(0, np.int32)


def _blocks(context: int) -> int:
    return -(-context // BLOCK)
