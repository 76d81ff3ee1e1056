"""The forms in which the values of a graph are read: float32, int8 rows, or both.

A value is int8 if linear ops with integer weights, or adapters stored as int8, read it. It is rounded once for each
kind of rounding that they need.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeGuard

from infeng_core.models.ops import Combine, ExpertLinear, Graph, Linear, Op, Residual, Route, consumers

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import AdapterDtype
    from infeng_core.formats.tensors import LoadedModel

Rounding = tuple[int, int]
"""How int8 rows are made: the inputs that share a scale, and the inputs that are rotated together, 0 for none."""
PLAIN: Rounding = (64, 0)


class Forms:
    """The forms of one graph's values."""

    def __init__(self, model: LoadedModel, graph: Graph, adapters: AdapterDtype | None, kept: Collection[str]) -> None:
        """``adapters``: the type in which adapters are stored, None without; ``kept``: values needed as f32 anyway."""
        self._model = model
        self._graph = graph
        self._adapters = adapters
        self._kept = frozenset(kept)

    def of(self, index: int, out: str) -> tuple[bool, list[Rounding]]:
        """Return whether the value that op ``index`` writes is read as f32, and the roundings in which it is read as
        int8."""
        readers = consumers(self._graph, index)
        as_int8 = [reader.weight for reader in readers if self._takes_int8(reader, out)]
        adapted = [reader.weight for reader in readers if self._is_adapted(reader, out)]
        adapters = {self._adapters} if adapted else set()
        roundings = {self.rounding(weight) for weight in (*as_int8, *(adapted if "int8" in adapters else ()))}
        as_operand = [
            reader
            for reader in readers
            if isinstance(reader, Linear | ExpertLinear | Combine)
            and any(isinstance(s, Residual) and s.value == out for s in reader.steps)
        ]
        needs_f32 = len(as_int8) < len(readers) or bool(as_operand) or out in self._kept
        return needs_f32 or "f32" in adapters or "bf16" in adapters, sorted(roundings)

    def is_int8(self, weight: str) -> bool:
        """Return whether a linear with ``weight`` reads int8 rows."""
        return not self._model.tensors[weight].quant.is_float

    def rounding(self, weight: str) -> Rounding:
        """Return how the int8 input of a linear with ``weight`` is rounded; for a float weight, adapters need plain
        groups."""
        tensor = self._model.tensors[weight]
        return tensor.quant.group, tensor.quant.rotation(tensor.k)

    @staticmethod
    def _is_adapted(reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        """Return whether adapters of op ``reader`` read ``value``; adapters of a route read its copies."""
        return isinstance(reader, Linear | ExpertLinear | Route) and reader.x == value

    def _takes_int8(self, reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        return self._is_adapted(reader, value) and self.is_int8(reader.weight)
