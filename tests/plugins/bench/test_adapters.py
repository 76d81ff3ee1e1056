"""Random adapters: PEFT directories that fit a model's shapes, made once and kept."""

import json
from pathlib import Path

import numpy as np
import pytest
from infeng_bench.models import adapters, shapes, synthetic
from safetensors import safe_open

from infeng_core.errors import UsageError


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name of each tensor with its dtype and shape."""
    with safe_open(folder / "adapter_model.safetensors", "np") as file:
        return {
            name.removeprefix("base_model.model."): (
                file.get_slice(name).get_dtype(),
                tuple(file.get_slice(name).get_shape()),
            )
            for name in file.keys()  # noqa: SIM118
        }


def values(folder: Path, name: str) -> np.ndarray:
    """Return a tensor of an f32 adapter."""
    with safe_open(folder / "adapter_model.safetensors", "np") as file:
        return np.asarray(file.get_tensor(f"base_model.model.{name}"))


def test_every_linear_of_every_layer_gets_a_and_b_of_its_shape(tiny_config: Path) -> None:
    folder = adapters.peft_directory(tiny_config, 4)
    found = tensors(folder)
    assert len(found) == 2 * 7 * 2
    assert found["model.layers.0.self_attn.q_proj.lora_A.weight"] == ("BF16", (4, 64))
    assert found["model.layers.1.self_attn.v_proj.lora_B.weight"] == ("BF16", (32, 4))
    assert found["model.layers.1.mlp.down_proj.lora_A.weight"] == ("BF16", (4, 128))
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["use_dora"]) == ("LORA", 4, 8, False)
    assert config["target_modules"] == sorted(adapters.TARGETS["all"])


def test_an_adapter_is_made_once_per_choice_of_options(tiny_config: Path) -> None:
    folder = adapters.peft_directory(tiny_config, 4)
    stamp = (folder / "adapter_model.safetensors").stat().st_mtime_ns
    assert adapters.peft_directory(tiny_config, 4) == folder
    assert (folder / "adapter_model.safetensors").stat().st_mtime_ns == stamp
    others = [
        adapters.peft_directory(tiny_config, 8),
        adapters.peft_directory(tiny_config, 4, "qv"),
        adapters.peft_directory(tiny_config, 4, seed=1),
        adapters.peft_directory(tiny_config, 4, dora=True),
        adapters.peft_directory(tiny_config, 4, dtype="f32"),
    ]
    assert len({folder, *others}) == 6


def test_a_seed_gives_its_own_values_and_b_is_not_zero(tiny_config: Path) -> None:
    name = "model.layers.1.self_attn.q_proj.lora_B.weight"
    first, second = (values(adapters.peft_directory(tiny_config, 4, seed=s, dtype="f32"), name) for s in (0, 1))
    assert first.shape == second.shape == (64, 4)
    assert (first != second).all()
    assert 0.01 < first.std() < 0.03


def test_bf16_is_f32_rounded_to_nearest_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF80FFFF], np.uint32).view(np.float32)
    assert adapters._bf16(halfway).tolist() == [0x3F80, 0x3F82, 0x3F81, 0xBF81]


def test_dora_has_a_magnitude_for_each_output_near_the_norm_of_its_weights(tiny_config: Path) -> None:
    folder = adapters.peft_directory(tiny_config, 4, "q_proj,down_proj", dora=True, dtype="f32")
    assert json.loads((folder / "adapter_config.json").read_text())["use_dora"] is True
    with safe_open(synthetic.hf_directory(tiny_config) / "model.safetensors", "np") as file:
        weight = file.get_tensor("model.layers.0.mlp.down_proj.weight").astype(np.float32)
    norms = np.linalg.norm(weight, axis=1)
    magnitude = values(folder, "model.layers.0.mlp.down_proj.lora_magnitude_vector")
    assert magnitude.shape == (64,)
    assert np.median(np.abs(magnitude / norms - 1)) < 0.2


def test_embeddings_and_the_head_are_targets_too(tiny_config: Path) -> None:
    found = tensors(adapters.peft_directory(tiny_config, 2, "embed_tokens,lm_head"))
    assert found == {
        "model.embed_tokens.lora_embedding_A": ("BF16", (2, 320)),
        "model.embed_tokens.lora_embedding_B": ("BF16", (64, 2)),
        "lm_head.lora_A.weight": ("BF16", (2, 64)),
        "lm_head.lora_B.weight": ("BF16", (320, 2)),
    }


def test_a_tied_head_is_a_target_as_well() -> None:
    config = shapes.model_config("smollm2-135m")
    assert config.tie_embeddings
    assert [(m.path, m.rows, m.k) for m in adapters.target_modules(config, "lm_head")] == [("lm_head", 49152, 576)]


def test_a_model_is_named_by_shapes_directory_or_sizes(tiny_config: Path) -> None:
    wanted = tensors(adapters.peft_directory(tiny_config, 3, "qv"))
    assert tensors(adapters.peft_directory(synthetic.hf_directory(tiny_config), 3, "qv")) == wanted
    assert tensors(adapters.peft_directory(shapes.model_config(tiny_config), 3, "qv")) == wanted
    assert len(adapters.target_modules(shapes.model_config("tinyllama-1.1b"), "all")) == 22 * 7


@pytest.mark.parametrize(
    ("rank", "targets", "more", "said"),
    [
        (0, "all", {}, "from 1 to 1024"),
        (1025, "all", {}, "from 1 to 1024"),
        (4, "", {}, "none is named"),
        (4, "q_prj", {}, "did you mean `q_proj`"),
        (4, "all", {"dtype": "f16"}, "f16"),
        (4, "embed_tokens", {"dora": True}, "no magnitudes"),
    ],
)
def test_invalid_options_of_an_adapter_are_an_error(
    tiny_config: Path, rank: int, targets: str, more: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        adapters.peft_directory(tiny_config, rank, targets, **more)
    assert said in str(caught.value)


def test_an_interrupted_write_leaves_nothing_behind(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))

    def interrupt(values: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adapters, "_bf16", interrupt)
    with pytest.raises(KeyboardInterrupt):
        adapters.peft_directory(tiny_config, 4)
    assert list((tmp_path / "bench" / "adapters").iterdir()) == []
