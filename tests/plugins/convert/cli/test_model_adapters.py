"""``infeng models ADAPTER --base MODEL`` describes an adapter, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
import tiny_model

from infeng_core import cli

Look = Callable[..., tuple[int, Any]]


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str], tiny: Path) -> Look:
    def run(*words: object) -> tuple[int, Any]:
        status = cli.main(["models", *map(str, words), "--base", str(tiny), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("dtype", ["int8", "f32"])
def test_rank_targets_and_bytes_are_those_of_the_packed_adapter(
    look: Look, tiny: Path, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tiny_adapter.write(tmp_path / "one", 1, rank=3)
    status, [facts] = look(adapter, "--set", f"adapters.dtype={dtype}")
    layers = tiny_model.Shape().layers
    assert (status, facts["ranks"], facts["fits"], facts["dtype"]) == (0, [3], True, dtype)
    assert facts["targets"] == dict.fromkeys(("down_proj", "q_proj", "v_proj"), layers)
    words = [str(adapter), str(tmp_path / "packed"), "--model", str(tiny), "--dtype", dtype, "--json"]
    assert cli.main(["convert-adapter", *words]) == 0
    assert facts["bytes"] == json.loads(capsys.readouterr().out)["nbytes"]


def test_an_artifact_has_the_same_description_as_its_source(
    look: Look, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, packed = tiny_adapter.write(tmp_path / "one", 1, invocation=(7, 5)), tmp_path / "packed"
    assert cli.main(["convert-adapter", str(adapter), str(packed), "--model", str(tiny), "--json"]) == 0
    look_at = ("ranks", "targets", "bytes", "fits", "invocation")
    capsys.readouterr()
    _, [first, second] = look(adapter, packed)
    assert {key: first[key] for key in look_at} == {key: second[key] for key in look_at}
    assert first["invocation"] == [7, 5]
    status, [facts] = look(packed, "--set", "adapters.dtype=bf16")
    assert status == 1 and facts["why_not"].startswith("it is stored as int8, the engine's adapters are bf16")


def test_an_adapter_of_another_base_does_not_fit_and_the_reason_is_printed(
    look: Look, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    other = tiny_adapter.write(tmp_path / "other", 1, shape=tiny_model.Shape(hidden=128, intermediate=256))
    status, [facts] = look(other)
    assert status == 1 and not facts["fits"] and "is expected" in facts["why_not"]
    assert cli.main(["models", str(other), "--base", str(tiny)]) == 1
    assert "  fits       no: " in capsys.readouterr().out


def test_an_invalid_base_and_a_missing_adapter_are_errors(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    assert cli.main(["models", "--base", str(tiny)]) == 2
    assert "infeng models ADAPTER --base MODEL" in capsys.readouterr().err
    assert cli.main(["models", str(tiny), "--base", str(tiny / "nowhere")]) != 0
    assert "--base" in capsys.readouterr().err
    assert cli.main(["models", str(tiny), "--base", str(tiny)]) == 1
    assert "holds no adapter" in capsys.readouterr().out
