"""Weights by columns, as GPTQ and AWQ pack them: qweight, qzeros, scales and g_idx.

GPTQ (AutoGPTQ, GPTQModel: ``nn_modules/qlinear``): a word of qweight, (k * bits / 32, n), holds neighbouring inputs of
an output; one of qzeros, (groups, n * bits / 32), neighbouring outputs. AWQ (AutoAWQ: ``modules/linear/gemm.py``):
words of both, (k, n / 8) and (groups, n / 8), hold eight outputs in an order of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_convert.quantized.module import Integers
from infeng_convert.quantized.raw import AWQ_ORDER, FLOATS, Raw, along, down
from infeng_convert.quantized.scheme import Scheme

ONES = {4: 0x11111111, 8: 0x01010101}
"""One in each field of a word."""


class Columns(Integers):
    """A weight of GPTQ or AWQ."""

    def __init__(self, raw: Raw, name: str, n: int, k: int, scheme: Scheme) -> None:
        """Check types and shapes; raises ModelError."""
        super().__init__(raw, name, n, k)
        self._is_awq, self._offset = scheme.words == "awq", scheme.zero_offset
        self.main = f"{name}.qweight"
        self._scales, self._zeros = (raw.require(f"{name}.{part}", self.main) for part in ("scales", "qzeros"))
        self._order = f"{name}.g_idx"
        self.bits = self._find_bits(scheme)
        self.group = self._find_group(scheme)
        raw.expect(self._scales, FLOATS, (self.groups, n))
        raw.expect(self._zeros, ("I32",), (self.groups, n * self.bits // 32))
        if self._order in raw:
            raw.expect(self._order, ("I32", "I64"), (k,))
        elif not self._is_awq and any(way.has_order for way in scheme.ways):
            raw.require(self._order, self.main)

    def codes(self) -> NDArray[np.int8]:
        words = np.ascontiguousarray(self.raw.words(self.main).T)
        return self.signed(down(words, self.bits, AWQ_ORDER) if self._is_awq else along(words, self.bits))

    def scales(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.raw.floats(self._scales).T)

    def zeros(self) -> NDArray[np.int16] | None:
        """Return the zero points (see ``Integers``).

        The offset of GPTQ's first version is added to whole words, as GPTQModel subtracts it: a zero point of 0
        borrows from its neighbour, and gives it back.
        """
        words = self.raw.words(self._zeros)
        if self._offset:
            words = words + np.uint32(ONES[self.bits])
        found = self.signed(down(np.ascontiguousarray(words.T), self.bits, AWQ_ORDER if self._is_awq else None))
        return found.astype(np.int16) if found.any() else None

    def order(self) -> NDArray[np.int64] | None:
        if self._order not in self.raw:
            return None
        return self.checked(self._order, self.raw.read(self._order).astype(np.int64))

    def _find_bits(self, scheme: Scheme) -> int:
        shapes: dict[tuple[int, ...], int] = {}
        for bits in sorted(scheme.sizes(is_float=False)):
            if self.n * bits % 32 == 0 and (self._is_awq or self.k * bits % 32 == 0):
                shapes[(self.k, self.n * bits // 32) if self._is_awq else (self.k * bits // 32, self.n)] = bits
        if not shapes:
            self.raw.fail(self.main, f"is of a matrix ({self.n}, {self.k}), whose codes do not fill words")
        self.raw.expect(self.main, ("I32",), *shapes)
        return shapes[self.raw.shape(self.main)]

    def _find_group(self, scheme: Scheme) -> int:
        """Return the group size that matches the number of scales."""
        sizes = dict.fromkeys(way.group or self.k for way in scheme.ways if way.bits == self.bits)
        shapes: dict[tuple[int, ...], int]
        shapes = {(-(-self.k // size), self.n): size for size in reversed(sizes)}
        self.raw.expect(self._scales, FLOATS, *shapes)
        return min(shapes[self.raw.shape(self._scales)], self.k)
