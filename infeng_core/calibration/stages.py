"""A family's graph in stages: each begins with a linear op, whose inputs are known before its weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from infeng_core.errors import ModelError
from infeng_core.models.ops import Embed, Graph, Linear, Op, Route, Value, reads, writes


@dataclass(frozen=True)
class Stage:
    """Ops of a graph that run together: one linear op and what follows it; the first stage has none.

    ``takes`` are the values that exist before it and that it reads, ``gives`` those that it writes and a later stage
    reads.
    """

    ops: tuple[Op, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    @property
    def linear(self) -> Linear | None:
        """The linear op that it begins with."""
        first = self.ops[0]
        return first if isinstance(first, Linear) else None

    def graph(self, values: Mapping[str, Value]) -> Graph:
        """Return the stage as a graph by itself: what it takes is looked up, row by row, in ``table(value)``."""
        known = {name: replace(value, sampled=False) for name, value in values.items()}
        loads = tuple(Embed(table(name), name) for name in self.takes)
        return Graph(known, (*loads, *self.ops), self.gives[0])


def table(value: str) -> str:
    """Return the name of the tensor that holds a value of earlier stages, one row per token."""
    return f"value {value}"


def stages(graph: Graph) -> list[Stage]:
    """Cut ``graph`` before each linear op; raises ModelError for one that looks up tokens after the first of them."""
    if any(isinstance(op, Route) for op in graph.ops):
        why = "which experts a row of the text goes to hangs on weights that are not chosen yet"
        raise ModelError("calibration", f"the model has experts: {why}", "convert without --calibrate")
    cuts = [index for index, op in enumerate(graph.ops) if isinstance(op, Linear)]
    bounds = [0, *cuts, len(graph.ops)]
    found = []
    for begin, end in pairwise(bounds):
        ops = graph.ops[begin:end]
        if begin and any(isinstance(op, Embed) for op in ops):
            raise ModelError("calibration", "the model looks up tokens in the middle of a pass", "convert without it")
        found.append(Stage(ops, _open(ops), _kept(ops, graph.ops[end:])))
    return found


def _open(ops: tuple[Op, ...]) -> tuple[str, ...]:
    """Return the values that ``ops`` read before they write them, in order."""
    known: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update((name, None) for name in reads(op) if name not in known)
        known.add(writes(op))
    return tuple(found)


def _kept(ops: tuple[Op, ...], later: tuple[Op, ...]) -> tuple[str, ...]:
    """Return the values that ``ops`` write and ``later`` ones read."""
    wanted = _open(later)
    return tuple(dict.fromkeys(writes(op) for op in ops if writes(op) in wanted))
