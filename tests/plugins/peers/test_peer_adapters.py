"""Peers that serve requests with adapters answer as if each request's adapter were merged into the weights."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.load.requests import Job
from infeng_bench.models import adapters, synthetic
from infeng_bench.processes import PeerError
from infeng_peers import export_gguf_adapter, known, serve
from infeng_peers.environment import Environment
from infeng_peers.process import EngineProcess
from safetensors.numpy import load_file, save_file

from infeng_core.cli import main

PLACES = {name: Environment(known.peer(name)) for name in ("llama_cpp", "transformers")}
MISSING = {name: place.missing() for name, place in PLACES.items()}  # of the user's cache: the tests have their own
PYTHON = {name: place.python for name, place in PLACES.items()}
PROMPTS = [list(range(5, 25)), list(range(40, 47))]
WAYS = {
    "llama_cpp": ("turns=rotate contexts=adapter", "turns=drain contexts=one", "turns=sort contexts=one unified=on"),
    "transformers": ("dtype=float32 mix=on", "dtype=float32 mix=off turns=rotate", "dtype=float32 mix=off turns=drain"),
}


def differences(adapter: Path, scale: float) -> dict[str, Any]:
    """Return what an adapter adds to each weight: scale * alpha / rank * B A."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    found = {}
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            b = tensors[name.replace(".lora_A.", ".lora_B.")].astype(np.float64)
            weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            found[weight] = scale * config["lora_alpha"] / config["r"] * (b @ a)
    return found


def merged(base: Path, adapter: Path, folder: Path, scale: float) -> Path:
    """Return ``base`` with the adapter in its weights."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text((base / name).read_text())
    added = differences(adapter, scale)
    weights = load_file(base / "model.safetensors")
    values = {name: (weight + added.get(name, 0)).astype(np.float32) for name, weight in weights.items()}
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(params=WAYS)
def peer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if MISSING[name]:
        pytest.skip(f"asks the peer {name}, which is not installed here")
    return name


@pytest.fixture(scope="module")
def base(tiny_config: Path) -> Path:
    return synthetic.hf_directory(tiny_config)


@contextlib.contextmanager
def started(peer: str, way: str, model: Path, folder: Path) -> Iterator[EngineProcess]:
    """Yield the peer on a Hugging Face directory."""
    if peer == "llama_cpp":
        out = folder / f"{model.name}.gguf"
        assert main(["convert", str(model), str(out), "--format", "f32", "--force"]) == 0
        model = out
    command = [str(PYTHON[peer]), "-P", serve.__file__, str(known.peer(peer).path), str(model), "--threads", "1"]
    command += [word for setting in way.split() for word in ("--set", setting)]
    engine = EngineProcess(peer, command, folder / "log", 120)
    try:
        engine.ready()
        yield engine
    finally:
        engine.close()


def held(peer: str, base: Path, adapter: Path, folder: Path) -> str:
    """Return an adapter as the peer reads it."""
    if peer == "transformers":
        return str(adapter)
    out = folder / f"{adapter.name}.gguf"
    export_gguf_adapter.export(adapter, base, out, "f32")
    return str(out)


@pytest.mark.slow
def test_a_peer_answers_as_if_the_adapter_were_merged(peer: str, base: Path, tiny_config: Path, tmp_path: Path) -> None:
    made = [adapters.peft_directory(tiny_config, 6, "all", seed, dtype="f32") for seed in (1, 2)]
    models = [merged(base, adapter, tmp_path / f"merged{i}", 6.0) for i, adapter in enumerate(made)]
    alone = []
    for model in (*models, base):
        with started(peer, WAYS[peer][0], model, tmp_path) as engine:
            alone.append([reply.ids for reply in engine.serve([Job(0.0, ids, 8) for ids in PROMPTS], 2).replies])
    assert len({str(ids) for ids in alone}) == 3
    wanted = [{"name": n, "path": held(peer, base, path, tmp_path), "scale": 6.0} for n, path in enumerate(made)]
    named = [{**adapter, "name": f"{adapter['name']}"} for adapter in wanted]
    asked = [("0", 0), (None, 0), ("1", 1), ("0", 1), (None, 1), ("1", 0)]
    jobs = [Job(0.0, PROMPTS[prompt], 8, name) for name, prompt in asked]
    expected = [alone[2 if name is None else int(name)][prompt] for name, prompt in asked]
    for way in WAYS[peer]:
        with started(peer, way, base, tmp_path) as engine:
            for _ in range(2):  # the second time they take the place of the first ones
                assert set(engine.adapters(named)) == {"0", "1"}
                assert [reply.ids for reply in engine.serve(jobs, 4).replies] == expected, way
            engine.adapters([])
            assert engine.serve([Job(0.0, PROMPTS[0], 8)], 1).replies[0].ids == alone[2][0]
            with pytest.raises(PeerError, match="loading adapters"):
                engine.adapters([{"name": "0", "path": str(tmp_path / "none"), "scale": 1.0}])
