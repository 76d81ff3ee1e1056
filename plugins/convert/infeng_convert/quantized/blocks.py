"""Weights in MXFP4: floats of 4 bits (e2m1), 32 inputs of an output under one power of two (OCP, Microscaling, 2023).

The layout is that of gpt-oss and transformers (``integrations/mxfp4.py``): ``_blocks``, (experts, outputs, groups,
16), bytes of two neighbours, the first in the low bits, and ``_scales``, (experts, outputs, groups), exponents plus
127.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.quantizers import Quantized
from infeng_convert.kept_integers import MXFP4_VALUES, halved
from infeng_convert.quantized.module import Module
from infeng_convert.quantized.raw import Raw, along

GROUP = 32
HALVED = 128  # the exponent's offset for MXFP4_VALUES, which are doubled
NOT_A_NUMBER = 255
PAIRS = np.ascontiguousarray(MXFP4_VALUES[along(np.arange(256, dtype=np.uint8)[:, None], 4)]).view(np.int16)[:, 0]
"""(256,) the two values of each byte, as they lie in memory."""
ROOM = "store them in floats: --set 'model.formats.layers.*.experts.*=bf16'"


class Blocks(Module):
    """Matrices of stacked experts, ``each`` outputs per expert: code[n, k] * scale[n, k / 32]."""

    def __init__(self, raw: Raw, name: str, n: int, k: int, each: int) -> None:
        """Check types and shapes; raises ModelError."""
        super().__init__(raw, name, n, k)
        self.main, self._scale, self._each = f"{name}_blocks", f"{name}_scales", each
        raw.require(self._scale, self.main)
        if k % GROUP:
            raw.fail(self.main, f"has groups of {GROUP}, and {k} inputs are no multiple of that")
        sizes = (n // each, each, k // GROUP)
        raw.expect(self.main, ("U8",), (*sizes, GROUP // 2))
        raw.expect(self._scale, ("U8",), sizes)

    @property
    def label(self) -> str:
        return "MXFP4"

    @property
    def room(self) -> int:
        """Bytes of one expert as ``read`` returns it, with its codes."""
        return 6 * self._each * self.k

    def values(self, begin: int, rows: int) -> NDArray[np.float32]:
        return self.read(slice(begin, begin + rows, 1))

    def read(self, rows: slice) -> NDArray[np.float32]:
        """Return (rows, k) float32."""
        codes, scales = self._codes(rows)
        found = codes.astype(np.float32)
        found.reshape(*scales.shape, GROUP)[...] *= scales[..., None]
        return found

    def kept(self, rows: slice) -> tuple[Quantized, int] | None:
        """Return rows as integers under fp16 scales, and how many weights were rounded for it; None for a NaN.

        A block with a scale below 2^-24, the least of fp16, becomes multiples of it. Raises ModelError for a scale
        beyond the largest.
        """
        codes, scales = self._codes(rows)
        blocks = codes.reshape(-1, GROUP)
        found = halved(blocks, scales.reshape(-1))
        if found is None:
            if np.isfinite(scales).all():
                self.raw.fail(self._scale, f"has powers up to 2^{int(np.log2(scales.max())) + 1}, beyond fp16", ROOM)
            return None
        stored = Quantized(found[0].reshape(codes.shape), found[1].reshape(scales.shape))
        return stored, 0 if found[0] is blocks else self._differing(codes, scales, stored)

    def _differing(self, codes: NDArray[np.int8], scales: NDArray[np.float32], stored: Quantized) -> int:
        row, column = np.nonzero(stored.codes != codes)
        group = column // GROUP
        meant = codes[row, column] * scales[row, group]
        return int(np.count_nonzero(stored.codes[row, column] * stored.scales[row, group] != meant))

    def _codes(self, rows: slice) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Return doubled values, (rows, k), and their scales, (rows, groups)."""
        groups, count = self.k // GROUP, rows.stop - rows.start
        blocks = self.raw.rows(self.main, rows.start * groups, count * groups).reshape(count, -1)
        exponents = self.raw.rows(self._scale, rows.start, count)[:: rows.step]
        scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - HALVED).astype(np.float32)
        scales[exponents == NOT_A_NUMBER] = np.nan
        return PAIRS[blocks[:: rows.step]].view(np.int8), scales
