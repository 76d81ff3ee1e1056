"""`infeng bench attention`: structure and arithmetic on tiny shapes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.engine.work import Work
from infeng_bench.kernels import attention_ops
from infeng_bench.models import shapes
from infeng_peers import oracles

from infeng_core.cli import main
from infeng_core.models.config import ModelConfig
from infeng_core.plug.assembly import load_config

FAKE = Path(__file__).parents[1] / "peers" / "fake_oracle.py"


def attention(out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb on one thread and return its result."""
    command = ["bench", "attention", "--synthetic", str(config), "-t", "1", "--rounds", "2", "--roofline", "none"]
    assert main([*command, "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


@pytest.fixture
def tiny(tiny_config: Path) -> ModelConfig:
    return shapes.model_config(tiny_config)


def test_every_work_is_measured_with_every_cache(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    works = ("--work", "decode:rows=3,context=40", "--work", "prefill:rows=2,context=33")
    result = attention(tmp_path / "out.json", tiny_config, *works, "--kv", "int8,f32")
    schema(result)
    found = [(line["kv_dtype"], line["work"]) for line in result["measurements"]]
    assert found == [(kv, work) for kv in ("int8", "f32") for work in (works[1], works[3])]
    for line in result["measurements"]:
        assert line["kernel"] in result["kernels"]


def test_multiplications_count_heads_rows_and_attended_positions(tiny: ModelConfig) -> None:
    assert attention_ops.macs(tiny, Work("decode", 3, 40)) == 2 * 4 * 16 * 3 * 40
    assert attention_ops.macs(tiny, Work("prefill", 2, 5)) == 2 * 4 * 16 * 2 * (1 + 2 + 3 + 4 + 5)


def test_bytes_count_one_layers_cache(tiny: ModelConfig) -> None:
    assert attention_ops.kv_bytes(tiny, Work("decode", 3, 40), "f32") == 3 * 40 * 2 * 2 * 16 * 4
    assert attention_ops.kv_bytes(tiny, Work("decode", 3, 40), "int8") == 3 * 40 * 2 * (2 * 16 + 8)


def test_prompts_are_chunked_as_in_the_engine(tiny: ModelConfig) -> None:
    config = load_config(overrides={"scheduler.max_batch_tokens": 16, "kv_cache.dtype": "f32"})
    bench = attention_ops.AttentionOps(config, [], 1)
    try:
        first = [[(16, 0)], [(16, 16)], [(8, 32)]]
        assert bench.steps(Work("prefill", 2, 40)) == [*first, *([(0, 0), *step] for step in first)]
        _, [subject] = bench.subjects(tiny, Work("decode", 2, 40))
        assert subject.calls == tiny.layers
        assert subject.once() > 0
        # The cache is filled to the last position: no row of the result is zero.
        out = dict(subject.op.run(0))["out"]
        assert np.isfinite(out).all()
        assert (np.abs(out).sum(axis=1) > 0).all()
    finally:
        bench.close()


def test_an_oracle_is_measured_once_for_all_cache_formats(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(oracles.SCRIPTS, "torch", str(FAKE))
    against = ("--against", "torch", "--oracle-python", sys.executable)
    work = ("--work", "decode:context=20", "--kv", "int8,f32")
    result = attention(tmp_path / "out.json", tiny_config, *work, *against)
    assert [line.get("oracle", False) for line in result["measurements"]] == [False, True, False]


def test_the_default_works_are_canonical_texts(tiny_config: Path) -> None:
    from infeng_bench.verbs import attention as verb

    assert [str(Work.parse(text)) for text in verb.WORKS] == list(verb.WORKS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--work", "decod:rows=1"], "did you mean `decode`"),
        (["--kv", "int9"], "int8"),
        (["--kernel", "nothing"], "no kernel library nothing"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(attempt: Any, arguments: list[str], said: str) -> None:
    status, told = attempt("attention", "--roofline", "none", *arguments)
    assert (status != 0, said in told) == (True, True)
