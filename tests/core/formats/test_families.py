"""A family is one file in models/: what it declares is enough to be found, configured and loaded."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import infeng_core.models
from infeng_core.errors import ModelError
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import builtin, describe, families
from infeng_core.models.ops import Linear
from infeng_core.models.weights import layout

SOURCE = """
from infeng_core.models.weights import Layout, TensorSpec, stacked

FAMILY = "tiny"
ARCHITECTURES = ("TinyForCausalLM",)


def weights(config):
    return Layout((TensorSpec("embed", config.hidden, stacked(("wte.weight", config.vocab))),), ())
"""
CONFIG: dict[str, Any] = {
    "architectures": ["TinyForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second folder of families that holds one file."""
    (tmp_path / "tiny.py").write_text(SOURCE)
    monkeypatch.setattr(infeng_core.models, "__path__", [*infeng_core.models.__path__, str(tmp_path)])
    builtin.cache_clear()
    yield
    sys.modules.pop("infeng_core.models.tiny", None)
    builtin.cache_clear()
    layout.cache_clear()


def test_the_families_are_found() -> None:
    found = {name: module.ARCHITECTURES for name, module in families().items()}
    assert found.items() >= {"llama": ("LlamaForCausalLM",), "qwen2": ("Qwen2ForCausalLM",)}.items()


def test_one_more_file_is_one_more_family(tiny: None) -> None:
    assert describe().startswith("llama (LlamaForCausalLM), ")
    assert "tiny (TinyForCausalLM)" in describe().split(", ")
    config = ModelConfig.from_hf(CONFIG, "config.json")
    assert config.family == "tiny"
    assert [part.source for part in layout(config).tensors[0].parts] == ["wte.weight"]


def test_without_the_file_the_family_is_unknown() -> None:
    with pytest.raises(ModelError, match=r"TinyForCausalLM.*use a model of a supported family: llama \(Llama"):
        ModelConfig.from_hf(CONFIG, "config.json")


QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def test_qwen2_has_biases_on_q_k_and_v_alone_whatever_its_config_says() -> None:
    for changes in ({}, {"attention_bias": True}, {"attention_bias": False}):
        config = ModelConfig.from_hf(QWEN2 | changes, "config.json")
        biases = [vector for vector in layout(config).vectors if vector.name.endswith("bias")]
        assert [vector.name for vector in biases] == ["layers.0.qkv_proj.bias"]
        sources = [part.source for part in biases[0].parts]
        assert sources == [f"model.layers.0.self_attn.{name}_proj.bias" for name in "qkv"]
        steps = [op.steps for op in families()["qwen2"].graph(config).ops if isinstance(op, Linear)]
        assert [[type(step).__name__ for step in each] for each in steps] == [
            ["Bias"],
            ["Residual"],
            ["SiluMul"],
            ["Residual"],
            [],
        ]


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_sliding_windows_of_qwen2_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"sliding windows, which is not run: use a model with full attention"):
        ModelConfig.from_hf(QWEN2 | changes, "config.json")


def test_full_attention_of_qwen2_is_accepted_as_it_is_written() -> None:
    written = {"use_sliding_window": False, "sliding_window": 64, "layer_types": ["full_attention"]}
    assert ModelConfig.from_hf(QWEN2 | written, "config.json").family == "qwen2"
