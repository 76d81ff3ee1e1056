"""Weights by rows, as compressed-tensors stores them: weight_packed, or weight in int8 or fp8, and weight_scale.

The layout is that of ``compressors/pack_quantized`` and ``naive_quantized`` in the library. Codes are signed and packed
plus half of their range, along the inputs; zero points of groups and rows are packed along the outputs. FP8 of
transformers, vLLM and DeepSeek has the same layout, with its scales sometimes in weight_scale_inv.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_convert.quantized.module import Floats, Integers
from infeng_convert.quantized.raw import FLOATS, MISMATCH, Raw, along, down
from infeng_convert.quantized.scheme import Scheme, Way

SCALES = ("weight_scale", "weight_scale_inv")


class Rows(Integers):
    """A weight of compressed-tensors in integers, packed or int8."""

    def __init__(self, raw: Raw, name: str, n: int, k: int, scheme: Scheme) -> None:
        """Check types and shapes; raises ModelError."""
        super().__init__(raw, name, n, k)
        self._is_packed = f"{name}.weight_packed" in raw
        self.main = f"{name}.weight_packed" if self._is_packed else f"{name}.weight"
        self._scale = raw.require(f"{name}.weight_scale", self.main)
        self._zero, self._order = f"{name}.weight_zero_point", f"{name}.weight_g_idx"
        self.bits = self._find_bits(scheme)
        ways = [way for way in scheme.ways if not way.is_float and (way.bits == self.bits or not self._is_packed)]
        self.group = self._find_group(ways)
        if self._zero in raw and raw.dtype(self._zero) == "I8":
            raw.expect(self._zero, ("I8",), self._scale_shape)
        elif self._zero in raw:
            raw.expect(self._zero, ("I32",), (-(-n * self.bits // 32), self.groups))
        elif not any(way.symmetric for way in ways):
            raw.require(self._zero, self.main)
        if self._order in raw:
            raw.expect(self._order, ("I32", "I64"), (k,))
        elif ways and all(way.has_order for way in ways):
            raw.require(self._order, self.main)
        self._check_shape()

    def codes(self) -> NDArray[np.int8]:
        if not self._is_packed:
            found: NDArray[np.int8] = self.raw.read(self.main)
            return found
        packed = along(self.raw.words(self.main), self.bits)
        return self.signed(np.ascontiguousarray(packed[:, : self.k]))

    def scales(self) -> NDArray[np.float32]:
        found = self.raw.floats(self._scale).reshape(-1, self.groups)
        return np.ascontiguousarray(np.broadcast_to(found, (self.n, self.groups)))

    def zeros(self) -> NDArray[np.int16] | None:
        if self._zero not in self.raw:
            return None
        if self.raw.dtype(self._zero) == "I8":
            found: NDArray[np.int8] = self.raw.read(self._zero)
        else:
            found = self.signed(down(self.raw.words(self._zero), self.bits)[: self.n])
        if not found.any():
            return None
        return np.ascontiguousarray(np.broadcast_to(found.reshape(-1, self.groups), (self.n, self.groups)), np.int16)

    def order(self) -> NDArray[np.int64] | None:
        if self._order not in self.raw:
            return None
        found = self.raw.read(self._order).astype(np.int64)
        if (found == -1).any():  # -1 means, as in the library, that no order has been set
            return None
        return self.checked(self._order, found)

    @property
    def _scale_shape(self) -> tuple[int, ...]:
        return self.raw.shape(self._scale)

    def _find_bits(self, scheme: Scheme) -> int:
        if not self._is_packed:  # codes of fewer than 8 bits may lie in bytes too
            self.raw.expect(self.main, ("I8",), (self.n, self.k))
            return 8
        shapes: dict[tuple[int, ...], int]
        shapes = {(self.n, -(-self.k * bits // 32)): bits for bits in sorted(scheme.sizes(is_float=False))}
        self.raw.expect(self.main, ("I32",), *shapes)
        return shapes[self.raw.shape(self.main)]

    def _find_group(self, ways: list[Way]) -> int:
        """Return the inputs of a group, by the shape of the scales."""
        shapes: dict[tuple[int, ...], int] = {}
        for way in ways:
            if way.group and self.k % way.group == 0:
                shapes.setdefault((self.n, self.k // way.group), way.group)
            elif not way.group:
                shapes |= dict.fromkeys(((self.n, 1), (self.n,), (1,), ()), self.k)
        self.raw.expect(self._scale, FLOATS, *shapes or {(self.n, 1): self.k})
        return shapes.get(self._scale_shape, self.k)

    def _check_shape(self) -> None:
        """Raise ModelError if ``weight_shape`` differs from the config."""
        name = f"{self.name}.weight_shape"
        if name in self.raw:
            self.raw.expect(name, ("I64", "I32"), (2,))
            found = tuple(int(size) for size in self.raw.read(name))
            if found != (self.n, self.k):
                self.raw.fail(name, f"says {found}, config says {(self.n, self.k)}", MISMATCH)


def floats(raw: Raw, name: str, n: int, k: int, scheme: Scheme) -> Floats:
    """Return a weight in fp8; raises ModelError for types and shapes that contradict the scheme."""
    main = f"{name}.weight"
    raw.expect(main, ("F8_E4M3",), (n, k))
    scale = next((found for part in SCALES if (found := f"{name}.{part}") in raw), f"{name}.{SCALES[0]}")
    raw.require(scale, main)
    shapes: dict[tuple[int, ...], tuple[int, int]] = {}
    for way in scheme.ways:
        if way.is_float and way.block is not None:
            shapes.setdefault((-(-n // way.block[0]), -(-k // way.block[1])), way.block)
        elif way.is_float and way.group and k % way.group == 0:
            shapes.setdefault((n, k // way.group), (1, way.group))
        elif way.is_float:
            shapes |= {(n, 1): (1, k), (n,): (1, k)} | dict.fromkeys(((), (1,), (1, 1)), (n, k))
    raw.expect(scale, FLOATS, *shapes or {(n, 1): (1, k)})
    return Floats(raw, name, n, k, scale, shapes.get(raw.shape(scale), (1, k)))
