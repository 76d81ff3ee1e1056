"""Programs of a single op over the caller's arrays, to run one kernel like the engine does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import infeng_core
from infeng_core import _native as native
from infeng_core.formats.packing import packer

F32 = NDArray[np.float32]
Activation = tuple[NDArray[np.int8], F32, NDArray[np.int32]]

FLOAT_FORMATS = tuple(name for name, act in native.WEIGHT_FORMATS.items() if act == "f32")
INT_FORMATS = tuple(name for name, act in native.WEIGHT_FORMATS.items() if act != "f32")


def reference() -> native.Library:
    """Return the core's reference library, opened like any other."""
    return native.open_library(str(Path(infeng_core.__file__).parent / "libinfeng_reference.so"))


def find_kernel(library: native.Library, problem: native.Problem) -> native.Kernel:
    """Return the library's first kernel that accepts the problem; KeyError if none does."""
    for kernel in library.kernels:
        if kernel.op == problem.op and kernel.accepts(problem):
            return kernel
    raise KeyError(f"{library.name} has no kernel for {problem!r}")


def panels_for(n: int) -> int:
    """Return how many panels of 16 hold n outputs."""
    return -(-n // 16)


def packed_bytes(fmt: str, w: NDArray, *, panels: int | None = None) -> native.Arena:
    """Return w (n, k) packed into panels in 64-byte aligned memory."""
    count = panels_for(len(w)) if panels is None else panels
    arena = native.Arena(max(count * native.panel_bytes(fmt, w.shape[1]), 64), huge_pages=False)
    packer().pack(fmt, w, arena)
    return arena


def packed(fmt: str, w: NDArray) -> native.Weight:
    """Return w (n, k) as a weight that a program can use."""
    n, k = w.shape
    return native.Weight(fmt, n, k, panels_for(n), native.panel_bytes(fmt, k), packed_bytes(fmt, w))


def unpacked(fmt: str, w: NDArray) -> F32:
    """Return (n, k) float32: the values that kernels compute with once w is packed."""
    n, k = w.shape
    return native.unpack(fmt, packed_bytes(fmt, w), 0, panels_for(n), k)[:n]


def panel_vector(values: F32) -> F32:
    """Return a bias or scale padded with zeros to whole panels of 16."""
    return np.pad(values, (0, -len(values) % 16)).astype(np.float32)


class OneOp:
    """A program under construction: declare values, add one op to ``program`` and run it.

    Outputs are filled with ``STALE`` before each run, so that a value that is never written shows.
    """

    STALE = -12345.0

    def __init__(
        self,
        rows: int,
        *,
        threads: int = 1,
        context: int = 64,
        positions: Sequence[int] | None = None,
        segments: Sequence[tuple[int, int, int, int]] = (),
        block_tables: Sequence[int] = (),
        sample_rows: Sequence[int] = (),
    ) -> None:
        """Take the shape of the one batch: segments are (row_begin, row_end, pos0, first index into block_tables)."""
        self.rows = rows
        self.samples = len(sample_rows)
        self.program = native.Program(
            native.Pool(threads),
            max_rows=rows,
            max_samples=self.samples,
            max_segments=max(len(segments), 1),
            context=context,
        )
        self._positions = np.array(range(rows) if positions is None else positions, np.int32)
        self._segments = np.array(segments, np.int32).reshape(-1, 4)
        self._block_tables = np.array(block_tables, np.int32)
        self._sample_rows = np.array(sample_rows, np.int32)
        self._inputs: list[tuple[int, F32]] = []
        self._activations: list[tuple[int, Activation]] = []
        self._outputs: list[int] = []
        self._finished = False

    def bind(self, kernel: native.Kernel) -> list[tuple[int, native.Kernel]]:
        """Return the kernel bound for every number of rows."""
        return [(max(self.rows, self.samples), kernel)]

    def input(self, x: F32, *, samples: bool = False) -> int:
        """Declare a buffer that holds x (rows, columns) whenever the op starts."""
        buffer = self.program.buffer(x.shape[1], samples=samples)
        self._inputs.append((buffer, x))
        return buffer

    def input_activation(self, activation: Activation, columns: int, group: int = 64) -> int:
        """Declare int8 rows: q (rows, columns padded to 64), scale and sum (rows, columns / 64)."""
        value = self.program.activation(columns, group=group)
        self._activations.append((value, activation))
        return value

    def output(self, columns: int, *, samples: bool = False) -> int:
        """Declare a buffer that the op writes."""
        buffer = self.program.buffer(columns, samples=samples)
        self._outputs.append(buffer)
        return buffer

    def run(self, tokens: Sequence[int] | None = None) -> None:
        """Run the program once; tokens matter to embed only."""
        if not self._finished:
            self.program.finish()
            self._finished = True
        for buffer in self._outputs:
            self.program.view(buffer)[:] = self.STALE
        for buffer, x in self._inputs:
            self.program.view(buffer)[: len(x)] = x
        for value, parts in self._activations:
            for view, part in zip(self.program.view_activation(value), parts, strict=True):
                view[: len(part)] = part
        ids = np.zeros(self.rows, np.int32) if tokens is None else np.array(tokens, np.int32)
        self.program.run(ids, self._positions, self._segments, self._block_tables, self._sample_rows)

    def result(self, buffer: int) -> F32:
        """Return a copy of a buffer after the run."""
        return self.program.view(buffer).copy()

    def result_activation(self, value: int) -> Activation:
        """Return copies of q, scale and sum after the run."""
        q, scale, total = self.program.view_activation(value)
        return q.copy(), scale.copy(), total.copy()


def random_rows(seed: int, rows: int, columns: int) -> F32:
    """Return normal values, some rows much larger or smaller than others and one all zero where there are several."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x *= np.exp2(rng.integers(-6, 7, (rows, 1))).astype(np.float32)
    if rows > 2:
        x[1] = 0
    return x
