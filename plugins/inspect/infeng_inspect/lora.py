"""Random adapters for the op of a case: alone, combined and absent, with every option of a segment; or many alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import packer
from infeng_core.api.kernels import A_FORMATS, INTEGERS, Program, native

LANES = 16
WIDE, ODD = 24, 5
HEAD = 64  # bytes of a panel's scales
TAIL_ROWS, TAIL_BYTES = 8, 72  # rank rows of int8t4 that are stored together, and their bytes in a panel of B


@dataclass(frozen=True)
class RandomAdapters:
    """The adapters on the rows of a case: two adapters that show errors, or ``count`` of ``rank`` that share the
    rows."""

    storage: str
    count: int = 0
    rank: int = 16
    parts: Sequence[tuple[int, int, int]] = ()
    """(first panel, step, panels) of each projection; one over all panels where empty."""
    is_looked_up: bool = False
    """Whether a linear's u is looked up as embeddings' is, so that only the expand half is measured."""


class Lora:
    """The adapters of a program, for as many slots as it has calls."""

    def __init__(self, program: Program, adapters: RandomAdapters, rows: int, random: np.random.Generator) -> None:
        self.adapters = adapters
        self._program, self._random = program, random
        self._slots: list[tuple[str, int, int]] = []  # name, k, panels
        self._looked_up: native.AdapterEmbedding | None = None
        stacked = adapters.rank * max(1, len(adapters.parts)) if adapters.count else WIDE + LANES
        self.columns = -(-stacked // LANES) * LANES
        program.open_adapters(adapters.storage, columns=self.columns, max_ranges=max(4, rows))
        self._made: list[native.Adapter] = []

    def shrink(self, kernels: native.Bindings, call: int, x: int, k: int, panels: int) -> native.Epilogue:
        """Add a shrink over ``k`` inputs to the program; return the step that expands it."""
        self._slots.append((f"call{call}", k, panels))
        return native.Epilogue.lora(self._program.shrink(kernels, f"call{call}", x, k=k, panels=panels))

    def lookup(self, panels: int) -> native.Epilogue:
        """Return a step that adds products of a looked-up vector; a program can have one."""
        rank = self.adapters.rank
        part = self._part(rank, 0, range(panels))
        self._looked_up = native.AdapterEmbedding(rank, self._normal(1, rank), 1.0, part)
        return native.Epilogue.lora(self._program.embedding_slot(vocabulary=1, panels=panels))

    def ranges(self, rows: int) -> Sequence[tuple[int, int, Any, float]]:
        """Return the rows that use each adapter.

        With two adapters: rows of the second alone, of both together, and of neither. With many: consecutive shares.
        """
        count = self.adapters.count
        if not self._made:
            self._made = [self._adapter(index) for index in range(count or 2)]
        if count:
            used = min(count, rows)
            return [(rows * i // used, rows * (i + 1) // used, self._made[i], 1.0) for i in range(used)]
        alone, both = rows // 3, -(-2 * rows // 3)
        first, second = self._made
        together = [(alone, both, first, 0.5), (alone, both, second, 1.0)]
        return [(0, alone, second, 1.0), *together] if alone else together

    def _adapter(self, index: int) -> native.Adapter:
        tensors = []
        for name, k, panels in self._slots:
            rank, parts = self._parts(index, panels)
            tensors.append(native.AdapterTensor(name, rank, *self._a(rank, k), parts))
        return self._program.adapter(self.adapters.storage, tensors, embedding=self._looked_up)

    def _parts(self, index: int, panels: int) -> tuple[int, list[native.AdapterPart]]:
        """Return the stacked rank and the projections of adapter ``index``.

        With two adapters: the first has one projection; the second has one over every other panel, with all options,
        and one of rank 0 over the last panel.
        """
        if self.adapters.count:
            rank, places = self.adapters.rank, self.adapters.parts or ((0, 1, panels),)
            ranges = [range(first, first + step * count, step) for first, step, count in places]
            return rank * len(ranges), [self._part(rank, i * rank, each) for i, each in enumerate(ranges)]
        if index == 0:
            return WIDE, [self._part(WIDE, 0, range(panels))]
        rank = self._odd
        odd = self._part(rank, 0, range(0, panels, 2), with_all=True)
        return rank, [odd, self._part(0, rank, range(panels - 1, panels), with_all=True)]

    @property
    def _odd(self) -> int:
        """The rank of the second of two adapters; that of int8t4 is a multiple of 8."""
        return TAIL_ROWS if self.adapters.storage == "int8t4" else ODD

    def _a(self, rank: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return A in panels and its scaling."""
        format, whole = A_FORMATS[self.adapters.storage], (rank + LANES // 2 - 1) // LANES
        data = [self._packed(format, min(rank, whole * LANES), k)] if whole else []
        if rank > whole * LANES:  # folded: two lanes for a row, each over half of the inputs
            data.append(self._packed(format, LANES, -(-k // 128) * 64))
        scaling = np.zeros(-(-rank // LANES) * LANES, np.float32)
        scaling[:rank] = self._random.uniform(0.5, 2, rank)
        return np.concatenate([*data, np.empty(0, np.uint8)]), scaling

    def _packed(self, format: str, rows: int, k: int) -> NDArray[np.uint8]:
        """Return random rows in panels."""
        data = native.Arena(-(-rows // LANES) * native.panel_bytes(format, k), huge_pages=False)
        packer().pack(format, self._normal(rows, k) / np.float32(np.sqrt(k)), data)
        packed = np.asarray(memoryview(data)).view(np.uint8)
        return self._with_tails(packed.reshape(-(-rows // LANES), -1)) if self._has_tails else packed

    def _with_tails(self, panels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return random panels of int8t4 with the scales of panels of int8-row."""
        lines = self._random.integers(0, 256, (len(panels), (panels.shape[1] - HEAD) // LANES * 9), np.uint8)
        return np.concatenate([panels[:, :HEAD], lines], axis=1).reshape(-1)

    @property
    def _has_tails(self) -> bool:
        return self.adapters.storage == "int8t4"

    def _part(self, rank: int, column: int, panels: range, *, with_all: bool = False) -> native.AdapterPart:
        outputs = len(panels) * LANES
        b: NDArray[Any] = self._normal(len(panels), rank, LANES)
        b_scale = None
        if self.adapters.storage in INTEGERS:
            b = self._random.integers(-127, 128, b.shape).astype(np.int8)
            if self._has_tails:
                b = self._random.integers(0, 256, (len(panels), rank // TAIL_ROWS, TAIL_BYTES)).astype(np.uint8)
            b_scale = _halved((np.abs(self._normal(outputs)) / np.float32(64)).astype(np.float32))
        elif self.adapters.storage == "bf16":
            b = _halved(b)
        row_scale = np.float32(1) + self._normal(outputs) / np.float32(4) if with_all else None
        bias = self._normal(outputs) if with_all else None
        return native.AdapterPart(rank, column, panels.start, panels.step, len(panels), b, b_scale, row_scale, bias)

    def _normal(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, dtype=np.float32)


def _halved(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return bf16, rounded toward zero."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
