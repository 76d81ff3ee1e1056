"""An engine with a folder of adapters, memory that alone bounds their number, and the largest ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine
from safetensors.numpy import load_file, save_file

from infeng_core import Engine, SamplingParams
from infeng_core.errors import AdapterError, ManifestError, RequestError
from infeng_core.plug.assembly import load_config
from infeng_core.settings.config import MOST_RESIDENT, AdaptersSection

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(24):
        tiny_adapter.write(tmp_path / "many" / f"n{seed}", seed, targets=("down_proj",), rank=2, strength=1.0)
    return tmp_path / "many"


def test_adapters_of_a_folder_answer_in_one_batch_and_stay_as_memory_allows(
    make_engine: MakeEngine, folder: Path
) -> None:
    engine = make_engine(adapters__directory=str(folder), scheduler__max_running=8)
    assert list(engine.adapters) == [] and "n3" in engine.adapters and "x" not in engine.adapters
    names = [f"n{seed}" for seed in range(24)]
    assert engine.adapters.available() == sorted(names)
    answers = engine.generate(["x"] * 24, PARAMS, adapters=list(names))
    totals = engine.adapters.totals()
    assert (totals.names, totals.resident, totals.loads) == (24, 24, 24), "more than any fixed number of few"
    other = make_engine()
    other.adapters.load("seven", folder / "n7")
    assert other.generate("x", PARAMS, adapters="seven")[0].token_ids == answers[7].token_ids
    small = make_engine(adapters__directory=str(folder), adapters__memory=3 * (engine.adapters["n0"].bytes or 0))
    assert [one.token_ids for one in small.generate(["x"] * 24, PARAMS, adapters=list(names))] == [
        one.token_ids for one in answers
    ]
    assert small.adapters.totals().resident == 3
    with pytest.raises(RequestError, match="no adapter of that name"):
        engine.submit("x", adapter="nobody")


def test_a_broken_adapter_of_the_folder_fails_its_own_request(make_engine: MakeEngine, folder: Path) -> None:
    (folder / "n1" / "adapter_model.safetensors").write_bytes(b"none")
    (folder / "bare").mkdir()
    engine = make_engine(adapters__directory=[str(folder)], adapters__warm=["n0"])
    assert engine.adapters["n0"].pinned
    for name in ("n1", "bare"):
        with pytest.raises(AdapterError, match=name):
            engine.generate("x", PARAMS, adapters=name)
    assert engine.generate("x", PARAMS, adapters="n2")


def test_the_setting_is_one_folder_or_several_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    manifest = tmp_path / "engine.yaml"
    for text, wanted in (
        ("here", (str(tmp_path / "here"),)),
        ("[here, org/judge]", (str(tmp_path / "here"), "org/judge")),
    ):
        manifest.write_text(f"infeng: 1\nadapters: {{directory: {text}, max_resident: auto}}\n")
        section = load_config(manifest).adapters
        assert (section.directory, section.most_resident) == (wanted, MOST_RESIDENT)
    assert AdaptersSection(max_resident=5).most_resident == 5
    manifest.write_text("infeng: 1\nadapters: {max_resident: many}\n")
    with pytest.raises(ManifestError, match="or the word auto"):
        load_config(manifest)


def test_a_missing_folder_is_an_error_of_the_start(tiny: Path) -> None:
    with (
        pytest.raises(AdapterError, match=r"adapters\.directory: /nowhere: is not there"),
        Engine(tiny, overrides={"adapters.directory": ["/nowhere"]}),
    ):
        pass


@pytest.mark.parametrize("rank", [128, 256])
def test_large_ranks_compute_their_last_rows(rank: int, make_engine: MakeEngine, tmp_path: Path) -> None:
    """An adapter of rank 4 whose rows are the last ones of a large rank gives the same answers."""
    small = tiny_adapter.write(tmp_path / "small", 1)
    large = tmp_path / "large"
    large.mkdir()
    random, tensors = np.random.default_rng(2), {}
    for name, values in load_file(small / "adapter_model.safetensors").items():
        if name.endswith("lora_A.weight"):
            rest = random.standard_normal((rank - 4, values.shape[1])).astype(np.float32)
            tensors[name] = np.concatenate([rest, values])
        else:
            tensors[name] = np.concatenate([np.zeros((len(values), rank - 4), np.float32), values], axis=1)
    save_file(tensors, large / "adapter_model.safetensors")
    settings = json.loads((small / "adapter_config.json").read_text()) | {"r": rank, "lora_alpha": 2 * rank}
    (large / "adapter_config.json").write_text(json.dumps(settings))
    engine = make_engine(adapters__dtype="f32", model__format="f32", adapters__directory=str(tmp_path))
    one, other, both, plain = (
        engine.score("the quick", " brown fox", adapter=adapter)
        for adapter in ("small", "large", (("small", 0.5), ("large", 0.5)), None)
    )
    assert [token.logprob for token in other] == pytest.approx([token.logprob for token in one], abs=1e-4)
    assert [token.logprob for token in both] == pytest.approx([token.logprob for token in one], abs=1e-4)
    assert [token.logprob for token in plain] != pytest.approx([token.logprob for token in one], abs=1e-2)
    assert engine.adapters["large"].rank == rank
