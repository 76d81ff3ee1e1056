"""`model.context` bounds a sequence, and chooses the rope of models with a separate one for long texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_model
from engine_parts import MakeEngine

from infeng_core import SamplingParams
from infeng_core.errors import RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=2)
PROMPT = [5 + i * i % 91 for i in range(40)]

FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "longrope": {
        "original_max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "longrope", "attention_factor": 1.0, **FACTORS},
    },
}


def facts(completions: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.logprobs) for one in completions]


@pytest.mark.parametrize("kind", ["longrope", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_within_the_original_context_the_short_rope_is_used(
    make_engine: MakeEngine, tiny: Path, tmp_path: Path, kind: str
):
    model = tiny_model.write(tmp_path / kind, tiny_model.Shape(extra=ROPES[kind]))
    plain = tiny_model.write(tmp_path / "plain", tiny_model.Shape())
    short, long = make_engine(model, model__context=64), make_engine(model)
    assert (short.limits.context, long.limits.context) == (64, 256)
    expected = facts(make_engine(plain).generate([PROMPT], GREEDY))
    assert facts(short.generate([PROMPT], GREEDY)) == expected
    assert facts(long.generate([PROMPT], GREEDY)) != expected


def test_the_context_is_bounded_by_the_model_and_a_longer_prompt_names_the_bound(make_engine: MakeEngine):
    assert make_engine(model__context=1 << 20).limits.context == 256
    engine = make_engine(model__context=40)
    assert engine.limits.kv_blocks == 8 * 3
    with pytest.raises(RequestError, match=r"the context is 40 tokens \(model.context is 40\)"):
        engine.generate([PROMPT], GREEDY)
    assert len(engine.generate([PROMPT[:30]], GREEDY)[0].token_ids) == 10
