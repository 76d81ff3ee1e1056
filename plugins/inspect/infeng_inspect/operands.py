"""The operands of a case's op: random, equal before every run, and with watched memory around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import packer
from infeng_core.api.kernels import Program, native, problems
from infeng_inspect.steps import BLOCK

GUARD = 4096  # bytes before and after a weight
STALE = -12345.0
LARGE = 1 << 24  # bytes; larger weights repeat their first panels
SAMPLE = 7  # number of panels that repeat: no power of two, so that a wrong panel shows

Arrays = list[tuple[str, NDArray[Any]]]


@dataclass(frozen=True)
class _Watched:
    """Memory where a kernel may write only the first ``columns`` of the rows of a step."""

    name: str
    memory: NDArray[Any]  # (rows, all columns)
    columns: int = 0


class Operands:
    """The operands of one program."""

    def __init__(self, program: Program, random: np.random.Generator, *, is_sampled: bool) -> None:
        """Draw values by ``random``. If ``is_sampled``, outputs of ``program`` have a row for each sampled row."""
        self._program = program
        self._random = random
        self._is_sampled = is_sampled
        self._by_form: dict[str, int] = {}
        self._held: list[tuple[NDArray[Any], NDArray[Any] | float]] = []  # buffers, and their content before a run
        self._watched: list[_Watched] = []
        self._results: list[tuple[str, NDArray[Any], bool]] = []  # and whether its rows are the rows of a step
        self._refreshers: list[Callable[[], None]] = []
        self._writers: list[Callable[[], None]] = []

    # Before and after a run.

    def fill(self) -> None:
        """Restore the content that every operand has before a run."""
        for view, values in self._held:
            view[:] = values
        for write in self._writers:
            write()

    def seen(self) -> list[NDArray[Any]]:
        """Return a copy of all watched memory."""
        self._refresh()
        return [watched.memory.copy() for watched in self._watched]

    def damage(self, before: Sequence[NDArray[Any]], rows: int) -> str | None:
        """Return a description of the first forbidden write by a run of ``rows`` rows; ``before``: ``seen`` before
        the run."""
        self._refresh()
        found = None
        for watched, old in zip(self._watched, before, strict=True):
            changed = watched.memory != old
            changed[:rows, : watched.columns] = False
            if changed.any():
                found = found or f"it wrote to {watched.name}"
        return found

    def results(self, rows: int) -> Arrays:
        """Return copies of the outputs of a run of ``rows`` rows, by name."""
        return [(name, (array[:rows] if by_row else array).copy()) for name, array, by_row in self._results]

    def copied(self, read: Callable[[], None], write: Callable[[], None]) -> None:
        """Register a copy of a device's memory: ``read`` is called before it is compared, ``write`` when it is
        filled."""
        self._refreshers.append(read)
        self._writers.append(write)

    def _refresh(self) -> None:
        for refresher in self._refreshers:
            refresher()

    def hold(self, view: NDArray[Any], values: NDArray[Any] | float) -> None:
        """Fill ``view`` with ``values`` before every run."""
        self._held.append((view, values))

    def result(self, name: str, array: NDArray[Any], *, by_row: bool) -> None:
        """Register ``array`` as a result; ``by_row``: its rows are the rows of a step."""
        self._results.append((name, array, by_row))

    def watch(self, name: str, memory: NDArray[Any], columns: int = 0) -> None:
        """Watch ``memory`` for writes outside the first ``columns`` of a step's rows."""
        self._watched.append(_Watched(name, memory, columns))

    # Values of the program.

    def buffer(self, columns: int) -> int:
        """Declare a buffer of zeros that a run must leave unchanged."""
        value = self._program.buffer(columns)
        self.watch("memory beside its output", _whole(self._program.view(value)))
        return value

    def output(self, columns: int) -> int:
        """Declare the buffer of the result, the first of all results."""
        self.buffer(BLOCK)
        value = self._program.buffer(columns, samples=self._is_sampled)
        self.buffer(BLOCK)
        view = self._program.view(value)
        self.hold(view, STALE)
        self.watch("more than its output", _whole(view), columns)
        self._results.insert(0, ("out", view, True))
        return value

    def input(self, act: str, columns: int, *, is_output: bool = False) -> int:
        """Return the value that an op reads, as float32 or int8: random rows of different magnitude."""
        if act in self._by_form:
            return self._by_form[act]
        if act == "f32":
            value = self.rows(columns)
            views: tuple[NDArray[Any], ...] = (self._program.view(value),)
        else:
            group = native.ROW_GROUP if act == "int8-row" else int(act.removeprefix("int8-g"))
            value = self._program.activation(columns, group=group)
            views = self._program.view_activation(value)
            groups = views[1].shape[1]
            rows = self._int8_rows(len(views[1]), groups, columns, min(group // 64, groups))
            self._held += zip(views, rows, strict=True)
        self._by_form[act] = value
        if is_output:
            self.result("out", views[0], by_row=True)
        for view in views:
            self.watch("its input", _whole(view), columns if is_output else 0)
        return value

    def rows(self, columns: int, *, copies: int = 1, like_output: bool = False) -> int:
        """Declare a buffer of random rows, with a group of zeros in the first; like_output: a row for each of the
        output."""
        value = self._program.buffer(columns, copies=copies, samples=like_output and self._is_sampled)
        rows = len(self._program.view(value))
        source = self.normal(rows, columns) * np.exp2(np.arange(rows, dtype=np.float32) % 7 - 3)[:, None]
        source[0, : min(64, columns - 1)] = 0
        self.hold(self._program.view(value), source)
        return value

    def copies(self, act: str, experts: int, columns: int, top_k: int) -> tuple[int, int]:
        """Declare the outputs of a route: return its routing and the value with the copies of rows."""
        routing = self._program.routing(experts=experts, top_k=top_k)
        *by_row, begin = self._program.view_routing(routing)
        for name, sorting in zip(("experts", "weights", "places"), by_row, strict=True):
            self.result(name, sorting, by_row=True)
        self.result("begin", begin, by_row=False)
        self.buffer(BLOCK)
        declare = self._program.buffer if act == "f32" else self._program.activation
        value = declare(columns, copies=top_k)
        self.buffer(BLOCK)
        views: tuple[NDArray[Any], ...]
        views = (self._program.view(value),) if act == "f32" else self._program.view_activation(value)
        for view in views:
            self.result("copies", view.reshape(len(view) // top_k, top_k, -1), by_row=True)
        for view in (*by_row, begin, *views):
            self.hold(view, 99)
        return routing, value

    def epilogues(self, names: Sequence[Any], columns: int) -> tuple[list[native.Epilogue], int]:
        """Return the steps ``names`` after ``columns`` columns, without adapters' steps, and the columns of the
        result."""
        steps: list[native.Epilogue] = []
        for step in names:
            name, a, b = (step, 1.5, 2.0) if isinstance(step, str) else step
            if name == "residual" or name.startswith("mul"):
                value = self.rows(columns)
                self.watch("its operand", _whole(self._program.view(value)))
                function = name.removeprefix("mul").lstrip("_") or "identity"
                steps.append(
                    native.Epilogue.residual(value) if name == "residual" else native.Epilogue.mul(value, function)
                )
            elif problems.is_gated(name):
                steps.append(native.Epilogue.gated_mul(name.removesuffix("_mul"), a, b))
                columns //= 2
            elif name in ("quantize", "quantize_wide", "quantize_row"):
                kind = ROUNDINGS[name](columns)
                steps.append(native.Epilogue.quantize(self._output_activation(columns, **kind)))
            elif name in ("scale", "softcap"):
                steps.append(getattr(native.Epilogue, name)(a))
            elif name in ("bias", "row_scale"):
                steps.append(getattr(native.Epilogue, name)(self.vector(columns)))
            elif name != "lora":
                steps.append(native.Epilogue.activate(name))
        return steps, columns

    def _output_activation(self, columns: int, **kind: Any) -> int:
        self.buffer(BLOCK)
        value = self._program.activation(columns, samples=self._is_sampled, **kind)
        self.buffer(BLOCK)
        views: tuple[NDArray[Any], ...] = self._program.view_activation(value)
        for name, view in zip(("q", "scale", "sum"), views, strict=True):
            self.hold(view, 99)
            self.watch("more than its output", _whole(view), view.shape[1])
            self.result(name, view, by_row=True)
        return value

    def _int8_rows(self, rows: int, groups: int, columns: int, wide: int = 1) -> tuple[NDArray[Any], ...]:
        """Return (q, scale, sum) of rows; some groups are zero and some hold only the extremes.

        ``wide`` groups of 64 in a row share one scale.
        """
        style = self._random.integers(0, 8, (rows, groups))
        style[:, 0] = 7
        values = self._random.integers(-127, 128, (rows, groups, 64)).astype(np.int8)
        values[style == 0], values[style == 1], values[style == 2] = 0, 127, -127
        values.reshape(rows, -1)[:, columns:] = 0
        scales = np.where(style == 0, np.float32(0), np.abs(self.normal(rows, groups)) * np.float32(0.02))
        scales = scales[:, ::wide].repeat(wide, axis=1)[:, :groups]
        return values.reshape(rows, -1), scales, values.sum(axis=2, dtype=np.int32)

    # Memory of its own.

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """Return random values, of variance 1."""
        return self._random.standard_normal(shape, dtype=np.float32)

    def shuffled(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the numbers below the size of ``shape`` in random order."""
        return self._random.permutation(int(np.prod(shape))).reshape(shape)

    def table(self, shape: tuple[int, ...], name: str = "its tables") -> NDArray[np.float32]:
        """Return random values in memory of their own, which is watched; a program would copy unaligned memory."""
        array: NDArray[np.float32] = _bytes(native.Arena(4 * int(np.prod(shape)), huge_pages=False)).view(np.float32)
        array = array.reshape(shape)
        array[:] = self.normal(*shape)
        self.watch(name, array.reshape(1, -1))
        return array

    def vector(self, n: int, name: str = "its vectors") -> NDArray[np.float32]:
        """Return n random values around 1, watched."""
        vector = self.table((n,), name)
        vector[:] = np.float32(1) + vector / np.float32(4)
        return vector

    def weights(self, format: str, n: int, k: int, copies: int) -> Callable[[int], native.Weight]:
        """Make ``copies`` weights side by side, with watched memory around them; return the function call -> weight."""
        panels, size = n // BLOCK, native.panel_bytes(format, k)
        is_large = copies * panels * size > LARGE
        sample = min(panels, SAMPLE) if is_large else panels
        # Lanes without an output are part of the case.
        source = self.normal(sample * BLOCK - (3 if panels > 1 and not is_large else 0), k)
        packed = native.Arena(sample * size, huge_pages=False)
        packer().pack(format, source, packed)
        arena = native.Arena(2 * GUARD + copies * panels * size, huge_pages=is_large)
        memory = _bytes(arena)
        whole = memory[GUARD : GUARD + copies * panels * size].reshape(copies, panels, size)
        for begin in range(0, panels, sample):
            part = whole[:, begin : begin + sample]
            part[:] = _bytes(packed)[: sample * size].reshape(sample, size)[: part.shape[1]]
        if not is_large:
            self.watch("its weight", memory.reshape(1, -1))
        outputs = n if is_large else len(source)
        offsets = [GUARD + copy * panels * size for copy in range(copies)]
        return lambda call: native.Weight(format, outputs, k, panels, size, arena, offsets[call % copies])


def wide_rounding(columns: int) -> dict[str, Any]:
    """Return how ``columns`` are rounded in wide groups: rotated where possible, in groups of any width."""
    if columns % 64:
        return {"group": 128 if columns // BLOCK % 2 else 256}
    return {"group": (64, 128, 256)[columns // 64 % 3], "rotated": 64}


def row_rounding(columns: int) -> dict[str, Any]:
    """Return how ``columns`` are rounded under one scale: rotated in the largest blocks that divide them."""
    block = min(columns & -columns, 256)  # a power of two
    return {"group": native.ROW_GROUP, "rotated": block if block >= 64 else 0}


ROUNDINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "quantize": lambda _: {},
    "quantize_wide": wide_rounding,
    "quantize_row": row_rounding,
}
"""How each step that quantizes rounds a number of columns."""


def _bytes(arena: native.Arena) -> NDArray[np.uint8]:
    return np.asarray(memoryview(arena)).view(np.uint8)


def _whole(view: NDArray[Any]) -> NDArray[Any]:
    """Return all memory of a buffer: rows with their padding."""
    return np.lib.stride_tricks.as_strided(view, (len(view), view.strides[0] // view.itemsize))
