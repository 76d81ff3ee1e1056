"""Random adapters for one operation in a program: all that a segment can have, alone, combined and not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.plug.problems import Fields

DTYPES = ("int8", "bf16", "f32")
COLUMNS = 64
RANGES = 4
LANES = 16

_FORMATS = {"int8": "int8-row", "bf16": "bf16", "f32": "f32"}
_STORED: dict[str, type[np.generic]] = {"int8": np.int8, "bf16": np.uint16, "f32": np.float32}


def dtypes(case: Fields) -> Sequence[str | None]:
    """Return the storage types of adapters that a case is about; (None,) for a case without."""
    if case["op"] == "shrink":
        return [next(dtype for dtype, format in _FORMATS.items() if format == case["weight"])]
    if "lora" not in case.get("epilogues", ()):
        return (None,)
    return [dtype for dtype in DTYPES if f"lora_{dtype}" in case.get("needs", ())] or DTYPES


def form(dtype: str) -> tuple[str, str]:
    """Return the weight format of A, and what it reads."""
    return _FORMATS[dtype], "int8-g64" if dtype == "int8" else "f32"


class Adapters:
    """Two adapters for a slot "lora" of ``panels`` panels over ``k`` inputs.

    The first has one projection of rank 24. The second has two, of rank 5 over every other panel, and of rank 0 over
    the last one, with all that a projection can have.
    """

    def __init__(self, random: np.random.Generator, dtype: str, k: int, panels: int) -> None:
        self._random, self._dtype, self._k, self._panels = random, dtype, k, panels

    def place(self, program: _native.Program) -> None:
        """Make them, once ``program`` is finished."""
        wide = self._part(24, 0, range(self._panels))
        odd = self._part(5, 0, range(0, self._panels, 2), with_all=True)
        last = self._part(0, 5, range(self._panels - 1, self._panels), with_all=True)
        self._made = [self._adapter(program, 24, [wide]), self._adapter(program, 5, [odd, last])]

    def place_columns(self, program: _native.Program) -> None:
        """Make one whose product is u itself, for a slot of as many outputs as u has columns."""
        rank = self._panels * LANES - 3
        identity = np.zeros((self._panels, rank, LANES), np.float32)
        for r in range(rank):
            identity[r // LANES, r, r % LANES] = 1
        stored: NDArray[Any] = identity.astype(_STORED[self._dtype])
        if self._dtype == "bf16":
            stored = (identity.view(np.uint32) >> 16).astype(np.uint16)
        scale = np.ones(self._panels * LANES, np.float32) if self._dtype == "int8" else None
        self._made = [self._adapter(program, rank, [(rank, 0, 0, 1, self._panels, stored, scale, None, None)])]

    def rows(self, rows: int) -> list[tuple[int, int, Any, float]]:
        """Return the ranges of a step: the second adapter alone, both together, and the base; of one, all rows."""
        if len(self._made) == 1:
            return [(0, rows, self._made[0], 0.75)]
        alone, both = rows // 3, -(-2 * rows // 3)
        first, second = self._made
        ranges = [(alone, both, first, 0.5), (alone, both, second, 1.0)]
        return [(0, alone, second, 1.0), *ranges] if alone else ranges

    def _adapter(self, program: _native.Program, rank: int, parts: list[Any]) -> _native.Adapter:
        panels = -(-rank // LANES)
        format = _FORMATS[self._dtype]
        data: Any = _native.Arena(panels * _native.panel_bytes(format, self._k), huge_pages=False)
        a = self._normal(rank, self._k) / np.float32(np.sqrt(self._k))
        _native.pack(format, a, data)
        scaling = np.zeros(panels * LANES, np.float32)
        scaling[:rank] = self._random.uniform(0.5, 2, rank)
        return program.adapter(self._dtype, [("lora", rank, np.frombuffer(data, np.uint8), scaling, parts)])

    def _part(self, rank: int, column: int, panels: range, *, with_all: bool = False) -> _native.AdapterPart:
        outputs = len(panels) * LANES
        b: NDArray[Any] = self._normal(len(panels), rank, LANES)
        if self._dtype == "int8":
            b = self._random.integers(-127, 128, b.shape).astype(np.int8)
        elif self._dtype == "bf16":
            b = (b.view(np.uint32) >> 16).astype(np.uint16)
        scale = (np.abs(self._normal(outputs)) / np.float32(64)).astype(np.float32) if self._dtype == "int8" else None
        row_scale = np.float32(1) + self._normal(outputs) / np.float32(4) if with_all else None
        bias = self._normal(outputs) if with_all else None
        return (rank, column, panels.start, panels.step, len(panels), b, scale, row_scale, bias)

    def _normal(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, dtype=np.float32)
