"""An op over rows gives the same bytes by its name as by its class: both go through the table of its operands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from goldens.families import STARCODER2

from infeng_core import SamplingParams
from infeng_core.backends.native import executable
from infeng_core.models.families import families
from infeng_core.models.ops import Graph, LayerNorm, RowOp

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def answers(model: Path) -> tuple[tuple[int, ...], bytes, list[str]]:
    """Return tokens, a vector, and the ops that were bound."""
    with harness.engine(model, settings(STARCODER2, VECTOR)) as engine:
        prompt = list(STARCODER2.prompt)
        bound = [f"{one.op} {one.detail} {one.library}/{one.kernel}" for one in engine.bound()]
        return engine.generate([prompt], GREEDY)[0].token_ids, engine.embed([prompt])[0].tobytes(), bound


def test_norms_by_the_name_of_their_op_give_equal_tokens_and_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is read at sampled rows, and over all rows where a prompt is embedded."""
    model = STARCODER2.write(tmp_path / "model")
    expected = answers(model)

    def graph(config: Any) -> Graph:
        plain = families()["starcoder2"].graph(config)
        ops = tuple(op.as_row_op() if isinstance(op, LayerNorm) else op for op in plain.ops)
        assert sum(isinstance(op, RowOp) for op in ops) == 2 * config.layers + 1
        return replace(plain, ops=ops)

    monkeypatch.setattr(executable, "families", lambda: {"starcoder2": SimpleNamespace(graph=graph)})
    assert answers(model) == expected
