"""Converting an adapter ahead of time: a destination appears whole or not at all, and only what is ours is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from goldens.adapted import ADAPTED, Adapted
from safetensors.numpy import save

from infeng_core.cli import main
from infeng_core.errors import AdapterError, ResourceError
from infeng_core.formats.adapters.artifact import FILE
from infeng_core.formats.tensors import LoadedModel

CASES = {case.name: case for case in ADAPTED if not case.combines}
Bases = Callable[[Adapted, str], LoadedModel]


def test_a_destination_is_replaced_only_when_it_may_be(bases: Bases, tmp_path: Path, cache: Path) -> None:
    model, place = bases(CASES["lora"], "f32"), tmp_path / "place"
    first = convert_adapter(CASES["lora"].directory, place, model, "int8")
    again = convert_adapter(CASES["lora"].directory, place, model, "int8")
    assert again.reused and again.id == first.id
    with pytest.raises(AdapterError, match="exists already: give --force"):
        convert_adapter(CASES["thin"].directory, place, model, "int8")
    assert not convert_adapter(CASES["thin"].directory, place, model, "int8", force=True).reused
    assert load_adapter(place, model, "int8").id == load_adapter(CASES["thin"].directory, model, "int8").id
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("do not touch")
    for stranger in (b"", b"do not touch", save({"x": np.zeros(4, np.float32)}, {"format": "pt"}), None):
        if stranger is not None:  # a file that only has the name
            (other / FILE).write_bytes(stranger)
        else:
            (place / FILE).rename(other / FILE)
        for force in (False, True):
            with pytest.raises(AdapterError, match=r"no engine-native adapter.*: choose another destination"):
                convert_adapter(CASES["lora"].directory, other, model, "int8", force=force)
    assert (other / "precious").read_text() == "do not touch" and (other / FILE).stat().st_size
    (other / FILE).rename(place / FILE)
    assert {path.name for path in tmp_path.iterdir()} - {cache.name} == {"other", "place"}  # whichever test runs first


def test_a_failed_write_leaves_nothing_and_the_old_artifact(
    bases: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, place = bases(CASES["lora"], "f32"), tmp_path / "place"
    convert_adapter(CASES["lora"].directory, place, model, "int8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("infeng_peft.artifact.write_all", full)
    with pytest.raises(ResourceError, match="the disk is full, nothing was kept"):
        convert_adapter(CASES["thin"].directory, place, model, "int8", force=True)
    assert load_adapter(place, model, "int8").tensors
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_the_command_converts_and_says_what_it_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES["lora"]
    model, place = case.base.write(tmp_path / "model"), tmp_path / "artifact"
    command = ["convert-adapter", str(case.directory), str(place), "--model", str(model), "--format", "int8-row"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(place) and report["dtype"] == "int8" and not report["bound"] and not report["reused"]
    assert main(command) == 0
    assert "is there already, with the same contents" in capsys.readouterr().out
    assert main([*command, "--dtype", "bf16"]) == 1
    assert "give --force" in capsys.readouterr().err
    assert main([*command, "--dtype", "bf16", "--force"]) == 0
    assert "as bf16" in capsys.readouterr().out
    assert main(["convert-adapter", str(tmp_path), str(place), "--model", str(model)]) == 1
    assert "holds no adapter" in capsys.readouterr().err
