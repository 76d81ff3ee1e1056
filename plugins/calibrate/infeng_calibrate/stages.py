"""A family's graph in stages: each begins with a linear op, whose inputs are known before its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from infeng_core.api import ModelError
from infeng_core.api.formats import (
    Apply,
    Attention,
    Embed,
    ExpertLinear,
    Graph,
    KvAppend,
    Linear,
    Op,
    Route,
    Value,
    reads,
    writes,
)


@dataclass(frozen=True)
class Stage:
    """Ops of a graph that run together: one linear op and the ops after it; the first stage has no linear op.

    ``takes`` names the values of earlier stages that it reads, ``gives`` the values that later stages read. Values of
    experts' rows exist within a stage only: ``again`` holds ops of earlier stages that compute them once more, and
    ``shows`` is such a value if the next stage's linear op reads it, else "".
    """

    linear: Linear | ExpertLinear | None
    ops: tuple[Op, ...]
    again: tuple[Op, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    shows: str = ""

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """All ops in the order of their execution."""
        return (*self.again, *self.ops)

    @property
    def kept(self) -> tuple[str, ...]:
        """The values that are read after a run."""
        return (*self.gives, self.shows) if self.shows else self.gives

    def graph(self, values: Mapping[str, Value], integers: Collection[str]) -> Graph:
        """Return the stage as a graph of its own over a cache of one layer; its inputs lie in its buffers.

        ``integers`` names the weights with int8 inputs, which are rounded first.
        """
        known = {name: replace(value, sampled=False) for name, value in values.items()}
        readers = [op for op in self.all_ops if isinstance(op, Linear | ExpertLinear | Route)]
        rounded = {op.x for op in readers if op.weight in integers}
        loads = tuple(Apply(name, name, ()) for name in self.takes if name in rounded)
        ops = (replace(op, layer=0) if isinstance(op, KvAppend | Attention) else op for op in self.all_ops)
        return Graph(known, (*loads, *ops), self.kept[0], inputs=self.takes)


def stages(graph: Graph) -> list[Stage]:
    """Cut ``graph`` before each linear op; raises ModelError if an embedding follows the first linear op."""
    cuts = [index for index, op in enumerate(graph.ops) if isinstance(op, Linear | ExpertLinear)]
    bounds = [0, *cuts, len(graph.ops)]
    found: list[Stage] = []
    later: tuple[Op, ...] = ()
    shows = ""
    for begin, end in reversed(list(pairwise(bounds))):
        first = graph.ops[begin]
        ops = tuple(op for op in graph.ops[begin:end] if not isinstance(op, Route))  # routed again where it is read
        if begin and any(isinstance(op, Embed) for op in ops):
            raise ModelError("calibration", "the model looks up tokens in the middle of a pass", "convert without it")
        again = _again(graph, begin, ops)
        linear = first if isinstance(first, Linear | ExpertLinear) else None
        shown = shows if any(writes(op) == shows for op in ops) else ""
        found.append(Stage(linear, ops, again, _open((*again, *ops)), _kept(ops, later), shown))
        later = (*again, *ops, *later)
        shows = first.x if isinstance(first, ExpertLinear) else ""
    return found[::-1]


def route_of(stage: Stage) -> Route:
    """Return the routing op of a stage whose linear op has experts."""
    return next(op for op in reversed(stage.again) if isinstance(op, Route))


def _again(graph: Graph, begin: int, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the ops before ``begin`` that compute the values of experts' rows that ``ops`` read."""
    of_experts = {writes(op) for op in graph.ops if isinstance(op, Route | ExpertLinear)}
    wanted = {name for name in _open(ops) if name in of_experts}
    made: list[Op] = []
    for op in reversed(graph.ops[:begin]):
        if writes(op) in wanted:
            made.append(op)
            wanted.remove(writes(op))
            wanted.update(name for name in reads(op) if name in of_experts)
    return tuple(reversed(made))


def _open(ops: tuple[Op, ...]) -> tuple[str, ...]:
    """Return the values that ``ops`` read before they write them, in order."""
    known: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update((name, None) for name in reads(op) if name not in known)
        known.add(writes(op))
    return tuple(found)


def _kept(ops: tuple[Op, ...], later: tuple[Op, ...]) -> tuple[str, ...]:
    """Return the values that ``ops`` write and ``later`` ops read."""
    wanted = _open(later)
    return tuple(dict.fromkeys(writes(op) for op in ops if writes(op) in wanted))
