"""No op or step of the engine's own graph is idle: without any one of them, or with it wrong, logits are wrong.

The graph of a golden case is compiled once per mutant, for the reference kernels in f32, and its logits are compared
with those of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens import oracle
from goldens.shapes import BIASED, LINEAR, LLAMA3, Case

from infeng_core import Engine
from infeng_core.models.decoder import graph as decoder_graph
from infeng_core.models.ops import Attention, Graph, KvAppend, Linear, Op, RmsNorm, Rope, SiluMul, consumers, writes

MARGIN = 10  # times the tolerance
SHORT = 65  # rows of the prompt that show it


def changed(op: Op) -> Iterator[tuple[str, Op]]:
    """Yield ``op`` with one thing about it wrong."""
    match op:
        case RmsNorm(weight=weight, eps=eps):
            yield "with another epsilon", replace(op, eps=eps / 10)
            yield "with another weight", replace(op, weight="layers.1.mlp_norm" if weight == "norm" else "norm")
        case Linear(steps=steps):
            for step in steps:
                if not isinstance(step, SiluMul):  # without it the result has another width
                    yield f"without {type(step).__name__}", replace(op, steps=tuple(s for s in steps if s != step))
        case Rope(rope=rope):
            yield "with another theta", replace(op, rope=replace(rope, theta=rope.theta * 1.1))
            if rope.kind != "default":
                yield "without scaling", replace(op, rope=replace(rope, kind="default"))
        case KvAppend(k_column=k, v_column=v):
            yield "with k and v exchanged", replace(op, k_column=v, v_column=k)
            yield "to another layer", replace(op, layer=1 - op.layer if op.layer < 2 else 0)
        case Attention(scale=scale):
            yield "with another scale", replace(op, scale=scale * 1.05)
            yield "with a window", replace(op, window=32)


def mutants(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph without each op in turn, and with each op wrong in each way."""
    for index, op in enumerate(graph.ops):
        before, after = graph.ops[:index], graph.ops[index + 1 :]
        name = f"op {index}, {type(op).__name__}"
        if writes(op) != graph.logits:
            yield f"{name}, left out", without_idle_ops(replace(graph, ops=(*before, *after)))
        for what, wrong in changed(op):
            yield f"{name}, {what}", replace(graph, ops=(*before, wrong, *after))


def without_idle_ops(graph: Graph) -> Graph:
    """Leave out also what only the missing op has read: a program takes no op that nobody reads."""
    while True:
        idle = [
            index
            for index, op in enumerate(graph.ops)
            if writes(op) not in ("", graph.logits) and not consumers(graph, index)
        ]
        if not idle:
            return graph
        graph = replace(graph, ops=tuple(op for index, op in enumerate(graph.ops) if index not in idle))


def error(engine: Engine, case: Case) -> float:
    golden = oracle.golden(case)
    sampled = golden["positions"][golden["positions"] < SHORT]
    logits = harness.logits(engine, golden["prompt"][:SHORT], sampled)
    return float(np.abs(logits - golden["logits"][: len(sampled)]).max())


@pytest.mark.parametrize("case", [BIASED, LLAMA3, LINEAR], ids=lambda case: case.name)
def test_changing_any_op_or_step_changes_logits(
    case: Case, reduced: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = {"kernels.order": ["reference"], "kv_cache.memory": "4MB"}
    # Without adapters: a mutant may use a tensor twice, which no adapter could then tell apart.
    settings = {**harness.F32, "adapters.max_resident": 0}
    with harness.engine(reduced[case.name], settings, reference, rows=SHORT) as engine:
        assert error(engine, case) <= oracle.TOLERANCE
        survivors, seen = [], 0
        for name, graph in list(mutants(decoder_graph(engine.model.config))):
            seen += 1
            if harness.runs_graph(engine, graph, monkeypatch) and error(engine, case) <= MARGIN * oracle.TOLERANCE:
                survivors.append(name)
    assert survivors == []
    assert seen > 15 * engine.model.config.layers
