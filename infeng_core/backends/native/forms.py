"""In which forms the values of a graph are read: as float32, as int8 rows, or both.

Values are int8 where linear ops with integer weights take them, or their adapters where those are stored as int8, and
are rounded to it in as many ways as there are among these.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeGuard

from infeng_core.models.ops import Combine, ExpertLinear, Graph, Linear, Op, Residual, Route, consumers

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import AdapterDtype
    from infeng_core.formats.tensors import LoadedModel

Rounding = tuple[int, bool]
"""How int8 rows are made: the inputs that share a scale, and whether they are rotated."""
PLAIN: Rounding = (64, False)


class Forms:
    """The forms of one graph's values."""

    def __init__(self, model: LoadedModel, graph: Graph, adapters: AdapterDtype | None, kept: Collection[str]) -> None:
        """``adapters``: how those that rows may use are stored, None without; ``kept``: values wanted as f32 anyway."""
        self._model = model
        self._graph = graph
        self._adapters = adapters
        self._kept = frozenset(kept)

    def of(self, index: int, out: str) -> tuple[bool, list[Rounding]]:
        """Return whether the value that op ``index`` writes is read as f32, and how it is rounded where as int8."""
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
        """Return whether what a linear with ``weight`` reads is int8."""
        return not self._model.tensors[weight].quant.is_float

    def rounding(self, weight: str) -> Rounding:
        """Return how what a linear with ``weight`` reads as int8 is made; adapters of floats read plain groups."""
        quant = self._model.tensors[weight].quant
        return quant.group, quant.is_rotated

    @staticmethod
    def _is_adapted(reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        """Return whether adapters read ``value`` where an op does; of a route they read its copies."""
        return isinstance(reader, Linear | ExpertLinear | Route) and reader.x == value

    def _takes_int8(self, reader: Op, value: str) -> TypeGuard[Linear | ExpertLinear | Route]:
        return self._is_adapted(reader, value) and self.is_int8(reader.weight)
