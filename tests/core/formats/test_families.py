"""A family is one file in models/: what it declares is enough to be found, configured and loaded."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import infeng_core.models
from infeng_core.errors import ModelError
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import describe, families
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
    families.cache_clear()
    yield
    sys.modules.pop("infeng_core.models.tiny", None)
    families.cache_clear()
    layout.cache_clear()


def test_llama_is_found() -> None:
    assert families()["llama"].ARCHITECTURES == ("LlamaForCausalLM",)


def test_one_more_file_is_one_more_family(tiny: None) -> None:
    assert describe() == "llama (LlamaForCausalLM), tiny (TinyForCausalLM)"
    config = ModelConfig.from_hf(CONFIG, "config.json")
    assert config.family == "tiny"
    assert [part.source for part in layout(config).tensors[0].parts] == ["wte.weight"]


def test_without_the_file_the_family_is_unknown() -> None:
    with pytest.raises(ModelError, match=r"TinyForCausalLM.*use a model of a supported family: llama \(Llama"):
        ModelConfig.from_hf(CONFIG, "config.json")
