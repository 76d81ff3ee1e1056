"""Graphs that a caller gives: it writes the values that they declare as inputs, and no others are read unwritten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_model

from infeng_core import Engine, _native
from infeng_core.backends.native.executable import plan
from infeng_core.backends.native.plan import Planner
from infeng_core.errors import ModelError
from infeng_core.models.ops import Apply, Graph, Linear, Mul, Residual, RowScale, Value

NONE: Any = np.zeros(0, np.int32)
VALUES = {"x": Value(64), "gate": Value(64), "y": Value(64)}
PRODUCT = Graph(VALUES, (Apply("x", "y", (Mul("gate"), Residual("x"))),), "y", inputs=("x", "gate"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tiny_model.write(tmp_path_factory.mktemp("given") / "model")
    settings = {"kv_cache.memory": "4MB", "model.format": "f32", "model.formats": {}, "adapters.max_resident": 0}
    with Engine(model, threads=1, overrides=settings) as made:
        yield made


def planned(engine: Engine, graph: Graph) -> tuple[_native.Program, Planner]:
    heads = engine.model.config.cache_heads
    cache = _native.KvCache(engine.config.kv_cache.dtype, layers=2, blocks=1, **heads)
    given = (engine.model, engine.config, engine.limits, engine.selector, _native.Pool(1), cache)
    program, planner, _ = plan(*given, graph=graph, kept=graph.values)
    return program, planner


def run(engine: Engine, graph: Graph, **values: np.ndarray) -> np.ndarray:
    """Write ``values``, run a step over their rows and return the graph's result."""
    program, planner = planned(engine, graph)
    views = {name: program.view(planner.buffer(name)) for name in {*values, graph.logits}}
    program.finish()
    rows = len(next(iter(values.values())))
    for name, given in values.items():
        views[name][:rows] = given
    zeros = np.zeros(rows, np.int32)
    program.run(zeros, zeros, np.zeros((0, 4), np.int32), NONE, NONE)
    return views[graph.logits][:rows].copy()


def test_a_program_reads_what_its_caller_writes(engine: Engine) -> None:
    x, gate = np.random.default_rng(1).standard_normal((2, 5, 64)).astype(np.float32)
    np.testing.assert_array_equal(run(engine, PRODUCT, x=x, gate=gate), x * gate + x)


def test_factors_follow_a_linear(engine: Engine) -> None:
    x = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)
    plain = Graph(VALUES, (Linear("layers.0.o_proj", "x", "y"),), "y", inputs=("x",))
    scaled = replace(plain, ops=(Linear("layers.0.o_proj", "x", "y", (RowScale("norm"),)),))
    np.testing.assert_array_equal(run(engine, scaled, x=x), run(engine, plain, x=x) * engine.model.vectors["norm"])


@pytest.mark.parametrize("inputs", [(), ("x",), ("gate",), ("gate", "y")])
def test_a_value_that_is_no_input_is_not_read_before_it_is_written(engine: Engine, inputs: tuple[str, ...]) -> None:
    with pytest.raises(ModelError, match=r"its graph reads '(x|gate)' before an op writes it: correct the family"):
        planned(engine, replace(PRODUCT, inputs=inputs))


def test_an_input_that_is_no_value_is_an_error(engine: Engine) -> None:
    wrong = Graph({"y": Value(64)}, (Apply("x", "y", ()),), "y", inputs=("x",))
    with pytest.raises(ModelError, match=r"its graph names 'x', which is neither a value of it"):
        planned(engine, wrong)
