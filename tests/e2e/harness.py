"""Run an engine's executable on rows of our choosing, and watch the logits of an engine at work."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from goldens.families import FamilyCase
from numpy.typing import NDArray

from infeng_core import Engine
from infeng_core.backends.interface import BoundOp
from infeng_core.batch import AdapterHandle, AdapterRows, Batch
from infeng_core.errors import ModelError
from infeng_core.formats.adapters.load import load_adapter
from infeng_core.machine.cpu import detect
from infeng_core.models.families import added, families
from infeng_core.models.ops import Graph
from infeng_core.plug.hookspecs import BACKENDS
from infeng_core.plug.manager import Plugins

F32 = {"model.format": "f32", "model.formats": {}, "kv_cache.dtype": "f32", "adapters.dtype": "f32"}
"""Weights, cache and adapters as they were trained."""

Applied = Sequence[tuple[AdapterHandle, float]]
"""Adapters that combine, with their weights."""

FEATURES = {
    "amx": {"amx_tile", "amx_int8", "avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx2": {"avx2", "fma", "f16c"},
}

IMPLEMENTATIONS: dict[str, dict[str, object]] = {
    "reference": {"kernels.order": ["reference"]},
    "avx512": {"kernels.order": ["avx512", "reference"]},
    "avx2": {"kernels.order": ["avx2", "reference"]},
    "numpy": {"backend.use": "numpy"},
}
"""Settings under which each implementation runs every op that it has."""


def missing(implementation: str) -> str:
    """Return why this machine cannot run an implementation, or nothing."""
    lacking = sorted(FEATURES.get(implementation, set()) - detect().features)
    return f"this CPU has no {', '.join(lacking)}" if lacking else ""


VECTOR = next((name for name in ("avx512", "avx2") if not missing(name)), "reference")
"""The fastest library that this machine runs."""


def settings(case: FamilyCase, implementation: str) -> dict[str, object]:
    """Return what an engine of a case is made with, the bound of its context included."""
    found = {**F32, **IMPLEMENTATIONS[implementation], "kv_cache.memory": "4MB"}
    if case.context:
        found["model.context"] = case.context
    return found


def engine(
    directory: Path,
    *settings: Mapping[str, object],
    threads: int = 1,
    rows: int = 640,
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> Engine:
    """Return an engine that takes ``rows`` rows in a step and samples any number of them; later settings win.

    ``adapters`` are PEFT directories by the names that requests use.
    """
    overrides: dict[str, object] = {
        "scheduler.max_batch_tokens": rows,
        "scheduler.max_running": rows,
        "scheduler.step_ms": 0,
        "kv_cache.prefix": False,
    }
    overrides |= {"kv_cache.memory": "64MB"}
    for more in settings:
        overrides |= more
    return Engine(directory, threads=threads, overrides=overrides, adapters=adapters)


def applied(engine: Engine, adapters: Iterable[tuple[Path, float]]) -> Applied:
    """Load adapters with their weights into an engine's executable, stored as its configuration says."""
    dtype, plugins = engine.config.adapters.dtype, Plugins.discover(engine.config)
    packed = [(load_adapter(path, engine.model, dtype, providers=plugins), weight) for path, weight in adapters]
    return [(engine.executable.load_adapter(adapter), weight) for adapter, weight in packed]


def runs_graph(engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compile ``graph`` as that of the model's family; return False if it is refused.

    It may be refused only because it reads what no op has written.
    """
    name = engine.model.config.family
    monkeypatch.setitem(added, name, replace(families()[name], graph=lambda config: graph))
    engine.executable.close()
    backend = engine.plugins.get(BACKENDS, "native")
    try:
        engine.executable = backend.compile(engine.model, engine.config, engine.limits, engine.selector)
    except ModelError as refused:
        assert "before an op writes it" in str(refused)
        return False
    return True


def logits(
    engine: Engine,
    prompt: Sequence[int] | NDArray[np.int32],
    sampled: Iterable[int],
    chunks: int = 1,
    adapters: Applied = (),
) -> NDArray[np.float32]:
    """Run a prompt in ``chunks`` chunks through scattered cache blocks; returns the logits of rows ``sampled``."""
    prompt = np.asarray(prompt, np.int32)
    wanted = np.sort(np.fromiter(sampled, np.int32))
    blocks, groups = -(-len(prompt) // 16), len(engine.limits.windows)
    tables = np.zeros((groups, max(blocks, -(-engine.limits.context // 16))), np.int32)
    order = np.random.RandomState(blocks).permutation(engine.limits.kv_blocks)
    tables[:, :blocks] = order[: groups * blocks].reshape(groups, blocks)
    parts = []
    for begin, end in chunk_bounds(len(prompt), chunks):
        batch = Batch(
            segments=[],
            tokens=prompt[begin:end],
            positions=np.arange(begin, end, dtype=np.int32),
            kv_segments=np.array([[0, end - begin, begin, 0]], np.int32),
            block_tables=tables.reshape(-1),
            sample_rows=wanted[(wanted >= begin) & (wanted < end)] - begin,
            adapters=[AdapterRows(0, end - begin, handle, weight) for handle, weight in adapters],
        )
        parts.append(engine.executable.run(batch).copy())
    return np.concatenate(parts)


def chunk_bounds(length: int, chunks: int) -> list[tuple[int, int]]:
    """Cut [0, length) into parts of nearly equal size."""
    edges = [length * i // chunks for i in range(chunks + 1)]
    return list(pairwise(edges))


def libraries(bound: Iterable[BoundOp], ops: Iterable[str]) -> set[str]:
    """Return which libraries run these ops."""
    ops = set(ops)
    return {line.library for line in bound if line.op in ops}


class Recorder:
    """Stands before an executable and keeps a checksum of every row of logits by request and position."""

    def __init__(self, engine: Engine) -> None:
        """Watch an engine from now on."""
        self._inner: Any = engine.executable
        self.rows: dict[tuple[int, int], int] = {}
        self.largest_batch = 0
        self.steps = 0
        engine.executable = self

    def __getattr__(self, name: str) -> Any:
        """Pass everything else through."""
        return getattr(self._inner, name)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a step and remember its logits' bytes."""
        out = self._inner.run(batch)
        self.steps += 1
        self.largest_batch = max(self.largest_batch, len(batch.segments))
        # Rows of guessed tokens are sampled too; where a guess was wrong, a later step computes its position again.
        sampled = [
            (segment.sequence.id, segment.pos0 + segment.row_end - segment.row_begin - back)
            for segment in batch.segments
            for back in range(segment.sampled, 0, -1)
        ]
        for row, place in zip(out, sampled, strict=True):
            self.rows[place] = zlib.crc32(np.ascontiguousarray(row).tobytes())
        return out

    def of(self, request: int) -> dict[int, int]:
        """Return the checksums of one request by position."""
        return {position: checksum for (id_, position), checksum in self.rows.items() if id_ == request}
