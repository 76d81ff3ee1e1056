"""The backend ``numpy``: a loaded model on ``Llama``, behind the faces that the engine knows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import KernelError, available_bytes
from infeng_core.api.engines import BoundOp

from .adapter import Rows
from .blocks import Blocks
from .cache import CACHES
from .llama import Llama
from .packed import Handle, unpacked
from .weights import FAMILIES, dequantized, rounding_of

if TYPE_CHECKING:
    from infeng_core.api import EngineConfig
    from infeng_core.api.engines import Batch, Limits, PackedAdapter
    from infeng_core.api.formats import LoadedModel, ModelConfig
    from infeng_core.api.kernels import Selector

BLOCK = 16  # positions of a cache block
REASON = "backend.use is numpy; over integer weights its tokens may differ from the native backend's"
OPS = ("embed", "rmsnorm", "linear", "rope", "kv_append", "attention")


class NumpyBackend:
    """Makes executables whose every op is NumPy. Formats act as numbers: weights are dequantized to binary64 once.

    Over float weights it chooses the native backend's tokens. Over integer weights a last bit decides which way an
    activation is rounded to int8, so it may choose others (docs/numerics.md, "What is not exact").
    """

    uses_kernels = False

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of one block of the cache in all layers; raises KernelError for an unknown cache format."""
        if config.kv_cache.dtype not in CACHES:
            known, dtype = ", ".join(CACHES), config.kv_cache.dtype
            raise KernelError("backend numpy", f"it has no {dtype} cache", f"set kv_cache.dtype to one of {known}")
        cache = CACHES[config.kv_cache.dtype]
        return cache(layers=shape.layers, slots=BLOCK, kv_heads=shape.kv_heads, head_dim=shape.head_dim).nbytes

    def available_bytes(self) -> int | None:
        """Return what the machine and the control groups leave."""
        return available_bytes()

    def compile(
        self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector | None
    ) -> NumpyExecutable:
        """Return ``model`` ready to run; raises KernelError for a family that it does not know."""
        if model.config.family not in FAMILIES:
            raise KernelError(
                "backend numpy",
                f"it runs {', '.join(FAMILIES)}, the model is {model.config.family}",
                "use backend native",
            )
        return NumpyExecutable(model, config.kv_cache.dtype, limits)


class NumpyExecutable:
    """One model with its cache."""

    scratch_bytes = 0  # arrays come and go with each op
    max_stacked_rank = 1024  # as the native backend's by default; nothing here depends on it

    def __init__(self, model: LoadedModel, kv_dtype: str, limits: Limits) -> None:
        """Dequantize the weights and take memory for ``limits.kv_blocks`` blocks."""
        c = model.config
        cache = CACHES[kv_dtype](
            layers=c.layers, slots=limits.kv_blocks * BLOCK, kv_heads=c.kv_heads, head_dim=c.head_dim
        )
        self.kv_bytes = cache.nbytes
        self._blocks = Blocks(cache.arrays, BLOCK)
        self._layout = f"numpy 1: {kv_dtype}, {c.layers} layers, {c.kv_heads} heads of {c.head_dim}"
        if c.rope.kind in ("dynamic", "longrope"):  # keys are turned by a table that the context chooses
            self._layout += f", {limits.context} positions"
        self._lock = threading.Lock()  # blocks are copied between steps, whoever asks
        self.llama = Llama(c, dequantized(model), cache, block=BLOCK, context=limits.context)
        self._roundings = {name: rounding_of(model, name) for name in model.tensors}
        self._rows = (1, limits.max_rows)

    def load_adapter(self, adapter: PackedAdapter) -> Handle:
        """Dequantize an adapter; its memory goes with the last reference to what is returned."""
        return unpacked(adapter, self.llama.config, self._roundings.__getitem__)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step; returns the logits of the sampled rows, (samples, vocab) float32."""
        rows = [
            Rows(use.row_begin, use.row_end, cast(Handle, use.handle).adapter, use.weight) for use in batch.adapters
        ]
        with self._lock:
            logits = self.llama.forward(
                batch.tokens,
                batch.positions,
                batch.kv_segments,
                batch.block_tables,
                batch.sample_rows,
                rows,
                batch.hidden,
            )  # (samples, vocab) float64
        return logits.astype(np.float32)

    has_hidden_states = True

    def hidden_states(self) -> NDArray[np.float32]:
        """Return what the head reads of all rows of the last run that was asked for it, (rows, hidden) float32."""
        return self.llama.hidden.astype(np.float32)

    def block_layout(self) -> str:
        """Return what the bytes of a block mean."""
        return self._layout

    def read_blocks(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of whole blocks, (count, block_bytes) uint8; raises KernelError for one that does not exist."""
        with self._lock:
            return self._blocks.read(blocks)

    def write_blocks(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write what ``read_blocks`` returned to blocks; raises KernelError where it does not fit."""
        with self._lock:
            self._blocks.write(blocks, data)

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole blocks onto others; raises KernelError for one that does not exist."""
        with self._lock:
            self._blocks.copy(source, target)

    def bound(self) -> list[BoundOp]:
        """Return one line per kind of op."""
        return [BoundOp(op, "the whole model", self._rows, "numpy", f"{op}_float64", REASON) for op in OPS]

    def cancel(self) -> None:
        """Do nothing: a step in NumPy runs to its end."""

    def close(self) -> None:
        """Let go of the weights and the cache; calling it again does nothing."""
        for name in ("llama", "_blocks"):
            vars(self).pop(name, None)
