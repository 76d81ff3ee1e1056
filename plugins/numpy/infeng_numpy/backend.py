"""The backend ``numpy``: ``Llama`` or ``GraphModel`` with the engine's interfaces of a backend and an executable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import AdapterError, KernelError, available_bytes
from infeng_core.api.engines import BoundOp
from infeng_core.api.formats import families

from .adapter import Rows
from .blocks import Blocks
from .cache import CACHES
from .graph import GraphModel
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
    """A backend whose executables compute every op in NumPy, on weights dequantized to binary64.

    With float weights it generates the native backend's tokens. With integer weights, differences in a last bit can
    change the rounding of an activation to int8, and so the tokens (docs/numerics.md, "What is not exact").
    """

    uses_kernels = False
    streams_weights = True

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of one block of the cache in all layers; raises KernelError for an unknown cache format."""
        if config.kv_cache.dtype not in CACHES:
            known, dtype = ", ".join(CACHES), config.kv_cache.dtype
            raise KernelError("backend numpy", f"it has no {dtype} cache", f"set kv_cache.dtype to one of {known}")
        cache = CACHES[config.kv_cache.dtype]
        return cache(layers=shape.layers, slots=BLOCK, **shape.cache_heads).nbytes

    def available_bytes(self) -> int | None:
        """Return the bytes available to the machine and its control groups; None if unknown."""
        return available_bytes()

    def compile(
        self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector | None
    ) -> NumpyExecutable:
        """Return an executable of ``model``; a family of a plugin runs by its graph.

        Raises KernelError for an unknown family, and for a graph with an op that is not known.
        """
        if model.config.family not in families():
            raise KernelError("backend numpy", f"there is no family {model.config.family}", "use another model")
        return NumpyExecutable(model, config.kv_cache.dtype, limits)


class NumpyExecutable:
    """A model with its cache."""

    scratch_bytes = 0  # each op allocates its own arrays
    max_stacked_rank = 1024  # as the native backend's by default; nothing here depends on it

    def __init__(self, model: LoadedModel, kv_dtype: str, limits: Limits) -> None:
        """Dequantize the weights and allocate ``limits.kv_blocks`` blocks."""
        c = model.config
        cache = CACHES[kv_dtype](layers=c.layers, slots=limits.kv_blocks * BLOCK, **c.cache_heads)
        self.kv_bytes = cache.nbytes
        self._blocks = Blocks(cache.arrays, BLOCK)
        self._layout = f"numpy 1: {kv_dtype}, {c.layers} layers, {c.kv_heads} heads of {c.head_dim}"
        self._layout += f" and {c.v_head_dim}" if c.v_head_dim not in (0, c.head_dim) else ""
        if c.rope.kind in ("dynamic", "longrope"):  # the rotation of keys depends on the context
            self._layout += f", {limits.context} positions"
        self._lock = threading.Lock()  # other threads copy blocks between steps
        self.model: Llama | GraphModel
        if c.family in FAMILIES:
            self.model = Llama(c, dequantized(model), cache, block=BLOCK, context=limits.context)
        else:
            self.model = GraphModel(model, cache, block=BLOCK, context=limits.context)
        self._roundings = {name: rounding_of(model, name) for name in model.tensors}
        self._rows = (1, limits.max_rows)

    def load_adapter(self, adapter: PackedAdapter) -> Handle:
        """Return an adapter's dequantized matrices; the last reference to them frees their memory.

        Raises AdapterError for a family that runs by its graph.
        """
        if isinstance(self.model, GraphModel):
            why = f"backend numpy applies none to family {self.model.config.family}, which it runs by its graph"
            raise AdapterError(f"adapter {adapter.source}", why, "use backend native")
        return unpacked(adapter, self.model.config, self._roundings.__getitem__)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step; returns the logits of the sampled rows, (samples, vocab) float32."""
        rows = [
            Rows(use.row_begin, use.row_end, cast(Handle, use.handle).adapter, use.weight) for use in batch.adapters
        ]
        with self._lock:
            logits = self.model.forward(
                batch.tokens,
                batch.positions,
                batch.kv_segments,
                batch.block_tables,
                batch.sample_rows,
                rows,
                batch.hidden,
            )  # (samples, vocab) float64
        return logits.astype(np.float32)

    @property
    def has_hidden_states(self) -> bool:
        """Whether the family is one whose head's input is kept."""
        return isinstance(self.model, Llama)

    def hidden_states(self) -> NDArray[np.float32]:
        """Return the head's inputs of all rows of the last run with ``batch.hidden``, (rows, hidden) float32."""
        assert isinstance(self.model, Llama)  # has_hidden_states is true
        return self.model.hidden.astype(np.float32)

    def block_layout(self) -> str:
        """Return a description of a block's bytes: equal texts mean interchangeable blocks."""
        return self._layout

    def read_blocks(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of whole blocks, (count, block_bytes) uint8; raises KernelError for an unknown block."""
        with self._lock:
            return self._blocks.read(blocks)

    def write_blocks(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write data of ``read_blocks`` to blocks; raises KernelError if it does not fit."""
        with self._lock:
            self._blocks.write(blocks, data)

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole blocks onto others; raises KernelError for an unknown block."""
        with self._lock:
            self._blocks.copy(source, target)

    def bound(self) -> list[BoundOp]:
        """Return one entry per kind of op."""
        return [BoundOp(op, "the whole model", self._rows, "numpy", f"{op}_float64", REASON) for op in OPS]

    def cancel(self) -> None:
        """Do nothing: a step in NumPy cannot be interrupted."""

    def close(self) -> None:
        """Free the weights and the cache; further calls do nothing."""
        for name in ("model", "_blocks"):
            vars(self).pop(name, None)
