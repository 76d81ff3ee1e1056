"""Whole cache blocks as bytes: read from, written to and copied in a cache's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import KernelError

REMEDY = "use blocks of this engine's pool"


class Blocks:
    """The blocks of a cache; a block's bytes are its slices of all arrays, concatenated."""

    def __init__(self, arrays: Sequence[NDArray[Any]], block: int) -> None:
        """View ``arrays``, (..., slots, kv_heads, n) each, as blocks of ``block`` slots."""
        self._count = arrays[0].shape[-3] // block
        # (outer, blocks, bytes): views of the cache's own memory
        self._parts = [
            array.reshape(-1, self._count, block * array.shape[-2] * array.shape[-1]).view(np.uint8) for array in arrays
        ]
        self.nbytes = sum(part.shape[0] * part.shape[2] for part in self._parts)
        """Bytes of one block."""

    def read(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of blocks (count,): (count, nbytes); raises KernelError for an unknown block."""
        self._check(blocks)
        pieces = [part[:, blocks].swapaxes(0, 1).reshape(len(blocks), -1) for part in self._parts]
        return np.concatenate(pieces, axis=1)

    def write(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write ``data`` (count, nbytes) to blocks (count,); raises KernelError for an unknown block or shape."""
        self._check(blocks)
        if data.dtype != np.uint8 or data.shape != (len(blocks), self.nbytes):
            wanted = (len(blocks), self.nbytes)
            why = f"{len(blocks)} blocks take uint8 of shape {wanted}, not {data.dtype} {data.shape}"
            raise KernelError("kv cache", why, REMEDY)
        begin = 0
        for part in self._parts:
            outer, _, nbytes = part.shape
            piece = data[:, begin : begin + outer * nbytes].reshape(len(blocks), outer, nbytes)
            part[:, blocks] = piece.swapaxes(0, 1)
            begin += outer * nbytes

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy block source[i] to target[i] in ascending order of i; source, target: (count,). Raises KernelError."""
        if len(source) != len(target):
            raise KernelError("kv cache", f"{len(source)} blocks to copy to {len(target)}", REMEDY)
        self._check(source)
        self._check(target)
        for one, other in zip(source.tolist(), target.tolist(), strict=True):
            for part in self._parts:
                part[:, other] = part[:, one]

    def _check(self, blocks: NDArray[np.int32]) -> None:
        if blocks.dtype != np.int32 or blocks.ndim != 1:
            why = f"blocks are int32 of one dimension, not {blocks.dtype} {blocks.shape}"
            raise KernelError("kv cache", why, REMEDY)
        wrong = blocks[(blocks < 0) | (blocks >= self._count)]
        if len(wrong):
            why = f"the cache has {self._count} blocks, there is no block {wrong[0]}"
            raise KernelError("kv cache", why, REMEDY)
