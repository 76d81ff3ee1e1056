"""``infeng unpack``: a checkpoint of Granite Switch becomes a base and adapters that compute what it computed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_parts import Recorder
from goldens import switch
from safetensors.numpy import load_file, save_file

from infeng_core import Engine, Request, SamplingParams
from infeng_core.cli import main
from infeng_core.errors import ModelError

F32 = {"model.format": "f32", "model.formats": {}, "kv_cache.dtype": "f32", "adapters.dtype": "f32"}
TOLERANCE = 2e-4  # with logits of a standard deviation of 4.5


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return switch.write(tmp_path / "checkpoint")


def unpacked(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    dest = checkpoint.parent / "apart"
    assert main(["unpack", str(checkpoint), str(dest), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["base"] == str(dest / "base")
    assert told["adapters"] == {name: str(dest / "adapters" / name) for name in switch.NAMES}
    assert told["nbytes"] == sum(path.stat().st_size for path in dest.rglob("*.safetensors"))
    return dest


def test_its_parts_compute_the_same_logits_in_one_batch(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dest = unpacked(checkpoint, capsys)
    adapters = {name: dest / "adapters" / name for name in switch.NAMES}
    told = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    first, second, third = switch.NAMES
    uses = [None, first, second, third, third]
    with np.load(switch.EXPECTED) as file:
        expected = file["logits"]
    overrides = {**F32, "threads.count": 1, "scheduler.max_batch_tokens": 64}
    with Engine(dest / "base", overrides=overrides, adapters=adapters) as engine:
        assert engine.model.config.layers == switch.LAYERS
        inner = engine.executable
        recorder = Recorder(engine)
        prompts = switch.prompts()
        pairs = [*zip(prompts, uses, strict=True), (prompts[0], first)]  # not invoked: the base
        streams = [engine.submit(Request(tuple(prompt), told, adapter=use)) for prompt, use in pairs]
        for stream in streams:
            stream.result()
        engine.executable = inner
    rows = [
        np.array([np.frombuffer(row, np.float32) for row in recorder.logits[id_]]) for id_ in sorted(recorder.logits)
    ]
    for prompt, found, wanted in zip([*prompts, prompts[0]], rows, [*expected, expected[0]], strict=True):
        np.testing.assert_allclose(found[switch.sampled(prompt)], wanted, rtol=0, atol=TOLERANCE)


def test_an_adapter_names_the_modules_that_it_changes(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dest = unpacked(checkpoint, capsys)
    for place, name in enumerate(switch.NAMES):
        config = json.loads((dest / "adapters" / name / "adapter_config.json").read_text())
        assert config["alora_invocation_tokens"] == [switch.CONTROL[place]]
        assert config["r"] == config["lora_alpha"] == switch.RANKS[place]
        is_narrow = place == switch.NARROW
        assert config["target_modules"] == (["o_proj", "q_proj"] if is_narrow else sorted(ALL))
    base = load_file(dest / "base" / "model.safetensors")
    held = dict(switch.tensors())["model.embed_tokens.weight"]
    assert np.array_equal(base["lm_head.weight"], held)
    assert np.array_equal(base["model.embed_tokens.weight"][switch.CONTROL], held[switch.SUBSTITUTES])
    assert np.array_equal(base["model.embed_tokens.weight"][:117], held[:117])
    assert (dest / "base" / "tokenizer.json").exists()


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def test_it_is_not_loaded_as_it_is_and_the_error_names_the_command(checkpoint: Path) -> None:
    with pytest.raises(ModelError, match="a base with adapters within its checkpoint") as caught:
        Engine(checkpoint)
    assert "infeng unpack" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["GraniteForCausalLM"]}, "GraniteSwitchForCausalLM is expected"),
        ({"ms_code_m": ...}, "an older layout"),
        ({"switch_type": "single"}, "an older layout"),
        ({"dual_stream": True}, "dual_stream is True, which is not written apart"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"position_embedding_type": "nope"}, "position_embedding_type"),
        ({"adapter_names": ["a", "../b", "c"]}, "3 different names of files"),
        ({"adapter_names": ["a", "a", "c"]}, "3 different names of files"),
        ({"adapter_names": ["a"]}, "3 different names of files"),
        ({"adapter_token_ids": [117, 117, 118]}, "names a token twice"),
        ({"adapter_token_ids": [117, 118, 120]}, "must be from 0 to 119"),
        ({"adapter_substitute_token_ids": [1, 2]}, "has 2 entries, there are 3 adapters"),
        ({"adapter_substitute_token_ids": ...}, "has 0 entries, there are 3 adapters"),
        ({"num_hidden_layers": 3}, "has no place in this layout"),
        ({"num_hidden_layers": 5}, "is missing"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"num_adapters": 1 << 40}, "num_adapters"),
        ({"adapter_ranks": [4, 5, 3]}, "are expected"),
        ({"shared_intermediate_size": 95}, "are expected"),
    ],
)
def test_another_layout_is_refused_by_name(
    checkpoint: Path, changes: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {key: value for key, value in (switch.CONFIG | changes).items() if value is not ...}
    (checkpoint / "config.json").write_text(json.dumps(config))
    dest = checkpoint.parent / "apart"
    assert main(["unpack", str(checkpoint), str(dest)]) == 1
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert reason in said
    assert not dest.exists()


def test_odd_tensors_links_and_taken_places_are_refused(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors | {"model.layers.0.other": np.zeros(3, np.float32)}, checkpoint / "model.safetensors")
    assert main(["unpack", str(checkpoint), str(tmp_path / "apart")]) == 1
    assert "model.layers.0.other has no place in this layout" in re.sub(r"\s+", " ", capsys.readouterr().err)
    save_file(tensors, checkpoint / "model.safetensors")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    assert main(["unpack", str(checkpoint), str(tmp_path / "full")]) == 1
    assert "exists and is not empty" in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert (tmp_path / "full" / "mine").read_text() == "x"
    (checkpoint / "config.json").unlink()
    os.mkfifo(checkpoint / "config.json")
    assert main(["unpack", str(checkpoint), str(tmp_path / "apart")]) == 1
    assert "config.json" in capsys.readouterr().err
