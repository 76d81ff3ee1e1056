"""What a model's makers recommend is known to the engine, wherever the model was loaded from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from engine_parts import MakeEngine

from infeng_core import SamplingParams
from infeng_core.errors import ModelError
from infeng_core.formats.conversion import convert
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.requests.defaults import recommended


def given(directory: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    (directory / "generation_config.json").write_text(json.dumps(values))
    return recommended(directory)


def test_parameters_of_the_file_are_taken_and_others_are_not(tmp_path: Path):
    recommends = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9}
    found = given(tmp_path, {**recommends, "repetition_penalty": 1.1, "max_new_tokens": 7, "eos_token_id": 1, "x": {}})
    assert found == {**recommends, "repetition_penalty": 1.1}
    assert SamplingParams(**found).top_k == 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": True, "temperature": 0.6}, {"temperature": 0.6}),
        ({"do_sample": None, "temperature": None, "top_k": 0}, {"top_k": 0}),
        ({}, {}),
    ],
)
def test_a_model_that_is_not_to_be_sampled_is_greedy(
    tmp_path: Path, values: Mapping[str, Any], expected: Mapping[str, Any]
):
    assert given(tmp_path, values) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "warm"), ("top_k", 1.5), ("top_p", 0), ("min_p", True), ("typical_p", [1])],
)
def test_a_value_that_cannot_be_is_named_and_left_out(
    tmp_path: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
):
    assert given(tmp_path, {name: value, "repetition_penalty": 1.2}) == {"repetition_penalty": 1.2}
    warning = capsys.readouterr().err
    assert "a recommended parameter is ignored" in warning and f"{tmp_path / 'generation_config.json'}" in warning
    assert f"{name}: " in warning


def test_without_a_file_there_are_none_and_a_broken_one_is_an_error(tmp_path: Path):
    assert recommended(tmp_path) == {}
    path = tmp_path / "generation_config.json"
    path.write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        recommended(tmp_path)
    path.write_text("[1]")
    assert recommended(tmp_path) == {}
    path.write_bytes(b" " * (5 << 20))
    with pytest.raises(ModelError, match="has more than"):
        recommended(tmp_path)


def test_a_converted_model_keeps_them(make_engine: MakeEngine, tmp_path: Path):
    source = tiny_model.write(tmp_path / "source")
    values = {"temperature": 0.5, "top_p": 0.8, "do_sample": True, "eos_token_id": [1, 2]}
    (source / "generation_config.json").write_text(json.dumps(values))
    convert(source, tmp_path / "converted", FormatChoice("f32", {}), progress=False)
    expected = {"temperature": 0.5, "top_p": 0.8}
    for directory in (source, tmp_path / "converted"):
        engine = make_engine(directory)
        assert engine.defaults == expected
        assert engine.generate("x", SamplingParams(**engine.defaults, max_tokens=2, seed=1))[0].token_ids
        with pytest.raises(TypeError):
            engine.defaults["temperature"] = 1.0  # type: ignore[index]
    assert make_engine().defaults == {}
