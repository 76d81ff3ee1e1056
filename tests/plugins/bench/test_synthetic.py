"""Random models of given shapes: made once, kept, and such that the engine runs them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from infeng_bench.models import shapes, synthetic
from infeng_bench.models.random_checkpoint import Drawn
from infeng_convert.api import parse_config
from safetensors import safe_open

from infeng_core import Engine, SamplingParams
from infeng_core.errors import InfengError, ModelError, PluginError, UsageError
from infeng_core.models import families


def test_a_model_is_made_once_and_its_tensors_are_those_of_the_config(tiny_config: Path) -> None:
    folder = synthetic.hf_directory(tiny_config)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert synthetic.hf_directory(tiny_config) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    with safe_open(folder / "model.safetensors", "np") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        assert 0.01 < file.get_tensor("model.layers.1.mlp.up_proj.weight").std() < 0.03
        assert (file.get_tensor("model.norm.weight") == 1).all()
    assert found == dict(synthetic.tensor_shapes(json.loads(tiny_config.read_text())))
    assert found["model.layers.0.self_attn.k_proj.weight"] == (32, 64)
    assert found["lm_head.weight"] == (320, 64)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4-g64", "f32"])
def test_the_engine_runs_a_drawn_model(tiny_config: Path, format: str) -> None:
    folder = synthetic.native_directory(tiny_config, format)
    assert synthetic.native_directory(tiny_config, format) == folder
    with Engine(folder, threads=1) as engine:
        assert engine.model.formats_used["layers.0.down_proj"] == format
        assert engine.model.formats_used["embed"] == ("f32" if format == "f32" else "int8-row")
        completion = engine.generate("abc", SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))[0]
    assert len(completion.token_ids) == 4


@pytest.mark.parametrize("name", sorted(shapes.SHAPES))
def test_the_engine_reads_a_model_of_every_known_shape(name: str) -> None:
    assert shapes.model_config(name).family == ("qwen3_moe" if name.startswith("qwen3") else "llama")
    parameters = sum(math.prod(shape) for _, shape in synthetic.tensor_shapes(shapes.hugging_face_config(name)))
    expected = {"tinyllama-1.1b": 1.10e9, "smollm2-135m": 0.1345e9, "llama-3.2-1b": 1.236e9, "qwen3-30b-a3b": 30.53e9}
    assert parameters == pytest.approx(expected[name], rel=0.01)


@pytest.mark.parametrize("name", sorted(shapes.published()))
def test_a_published_shape_has_the_parameters_of_its_release(name: str) -> None:
    published, config = shapes.published()[name], shapes.model_config(name)
    assert config.family == published.config["model_type"]
    shapes_of = synthetic.tensor_shapes(shapes.hugging_face_config(name))
    assert sum(math.prod(shape) for _, shape in shapes_of) == published.parameters


def test_every_family_has_a_published_shape() -> None:
    names = (*shapes.SHAPES, *shapes.published())
    assert {shapes.model_config(name).family for name in names} == set(families.builtin())


def test_llama_3_has_its_own_rotary_scaling_and_tied_embeddings() -> None:
    config = shapes.model_config("llama-3.2-1b")
    assert (config.rope.kind, config.rope.factor, config.tie_embeddings) == ("llama3", 32.0, True)


@pytest.mark.slow
def test_a_mixture_is_packed_while_drawn_without_a_checkpoint(
    moe_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    folder = synthetic.native_directory(moe_config, "int4-g64")
    stamp = (folder / "manifest.yaml").stat().st_mtime_ns
    assert synthetic.native_directory(moe_config, "int4-g64") == folder
    assert (folder / "manifest.yaml").stat().st_mtime_ns == stamp and not (tmp_path / "bench").exists()
    with Engine(folder, threads=1) as engine:
        used = engine.model.formats_used
        assert (used["layers.0.experts.down_proj"], used["layers.0.router"]) == ("int4-g64", "bf16")
        weights = engine.model.matrix("model.layers.1.mlp.experts.2.up_proj.weight")
        assert 0.01 < weights.std() < 0.03
        assert not np.array_equal(weights, engine.model.matrix("model.layers.1.mlp.experts.3.up_proj.weight"))
        completion = engine.generate("abc", SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))[0]
    assert len(completion.token_ids) == 4


def test_a_drawn_mixture_has_one_matrix_in_memory_at_a_time() -> None:
    config = shapes.hugging_face_config("qwen3-30b-a3b")
    drawn = Drawn("qwen3-30b-a3b", config, {})
    assert drawn.largest == 2 * 151936 * 2048  # the embedding
    part = next(spec for spec in drawn.layout.tensors if spec.experts).parts[5]
    assert drawn.array(part).shape == (768, 2048)


def test_a_changed_config_gets_a_place_of_its_own(tiny_config: Path, tmp_path: Path) -> None:
    changed = tmp_path / "tiny.json"
    changed.write_text(json.dumps({**json.loads(tiny_config.read_text()), "num_hidden_layers": 1}))
    assert synthetic.hf_directory(changed) != synthetic.hf_directory(tiny_config)


def test_shapes_are_made_for_longer_contexts_with_the_same_weights(tiny_config: Path) -> None:
    name = str(tiny_config)
    assert shapes.lengthened(name, 256) == name
    longer = shapes.lengthened(name, 16400)
    assert longer == shapes.lengthened(longer, 20000) == f"{name}@32768"
    folder = synthetic.hf_directory(longer)
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 32768
    assert (folder / "model.safetensors").samefile(synthetic.hf_directory(name) / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "text", "kind", "said"),
    [
        ("tinylama-1.1b", None, UsageError, "did you mean `tinyllama-1.1b`"),
        ("missing.json", None, UsageError, "no such file"),
        ("bad.json", "{", UsageError, "not valid JSON"),
        ("list.json", "[]", UsageError, "not a JSON object"),
        ("foreign.json", '{"architectures": ["GPT2LMHeadModel"]}', ModelError, "GPT2LMHeadModel"),
    ],
)
def test_invalid_shapes_are_an_error(
    tmp_path: Path, name: str, text: str | None, kind: type[InfengError], said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    given = tmp_path / name if name.endswith(".json") else name
    with pytest.raises(kind) as caught:
        synthetic.hf_directory(given)
    assert said in str(caught.value)


def test_an_unknown_format_is_an_error(tiny_config: Path) -> None:
    with pytest.raises(PluginError, match="int4-g64"):
        synthetic.native_directory(tiny_config, "int4-g46")


def test_an_interrupted_write_leaves_nothing_behind(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:

        def interrupt(vocab: int) -> None:
            raise KeyboardInterrupt

        patch.setattr(synthetic, "byte_tokenizer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            synthetic.hf_directory(tiny_config)
    assert list((tmp_path / "bench").iterdir()) == []
    assert parse_config(json.loads((synthetic.hf_directory(tiny_config) / "config.json").read_text()), "").hidden
