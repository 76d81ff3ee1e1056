"""config.json is read strictly: real files are accepted, and any fault is an error that names the key."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from infeng_convert.api import parse_config

from infeng_core.errors import ModelError
from infeng_core.models.config import ModelConfig
from infeng_core.models.rope_config import RopeConfig

SOURCE = Path("somewhere/config.json")
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}


def read(**changes: Any) -> ModelConfig:
    data = {key: value for key, value in (BASE | changes).items() if value != "absent"}
    return parse_config(data, SOURCE)


def test_a_plain_llama_config_is_read() -> None:
    config = read()
    assert (config.family, config.hidden, config.intermediate, config.layers) == ("llama", 64, 172, 2)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab) == (8, 4, 8, 512)
    assert config.rope == RopeConfig(theta=10000.0)
    assert (config.bos_id, config.eos_ids) == (1, (2,))
    assert not (config.tie_embeddings or config.attention_bias or config.mlp_bias)


def test_head_dim_is_read_or_derived() -> None:
    assert read(head_dim=20).head_dim == 20
    assert read(head_dim=None).head_dim == 8
    assert read(hidden_size=60, head_dim=16).head_dim == 16


def test_kv_heads_default_to_heads() -> None:
    assert read(num_key_value_heads="absent").kv_heads == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500000.0},
        {"rope_theta": 500000},
        {"rope_theta": "absent", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_theta": 500000.0, "rope_scaling": None},
    ],
)
def test_rope_theta_is_found_at_each_of_its_places(changes: dict[str, Any]) -> None:
    assert read(**changes).rope == RopeConfig(theta=500000.0)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_scaled_rope_is_read_from_either_key(place: str, key: str) -> None:
    assert read(**{place: {key: "linear", "factor": 2.0}}).rope == RopeConfig(10000.0, "linear", 2.0)
    rope = read(**{place: LLAMA3 | {key: "llama3"}}).rope
    assert rope == RopeConfig(10000.0, "llama3", 32.0, 1.0, 4.0, 8192)


def test_eos_may_be_a_list_or_absent_and_generation_config_comes_first() -> None:
    assert read(eos_token_id=[5, 6, 5]).eos_ids == (5, 6)
    assert read(eos_token_id=None).eos_ids == ()
    assert parse_config(BASE, SOURCE, {"eos_token_id": [7, 8]}).eos_ids == (7, 8)
    assert parse_config(BASE, SOURCE, {"eos_token_id": None}).eos_ids == (2,)


def test_a_config_survives_its_plain_form() -> None:
    config = read(
        attention_bias=True, rope_scaling=LLAMA3 | {"rope_type": "llama3"}, eos_token_id=[3, 4], bos_token_id=None
    )
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())), "manifest.yaml") == config


@pytest.mark.parametrize(
    "name", ["TinyLlama-1.1B-Chat-v1.0", "Llama-3.2-1B-Instruct", "SmolLM2-135M", "Qwen2.5-0.5B-Instruct"]
)
def test_published_configs_are_accepted(name: str) -> None:
    folder = os.environ.get("INFENG_TEST_DATA")
    if not folder:
        pytest.skip("INFENG_TEST_DATA is not set")
    path = Path(folder) / "configs" / f"{name}.config.json"
    config = parse_config(json.loads(path.read_text()), path)
    assert config.heads % config.kv_heads == 0 and config.head_dim == 64


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"architectures": ["Qwen9ForCausalLM"]}, "architectures", "LlamaForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "architectures", "list"),
        ({"architectures": None, "model_type": "no_such_family"}, "model_type", "llama"),
        ({"architectures": None, "model_type": None}, "model_type", "null"),
        ({"hidden_size": -64}, "hidden_size", "-64"),
        ({"hidden_size": 0}, "hidden_size", "from 1"),
        ({"hidden_size": 10**300}, "hidden_size", "digits"),
        ({"hidden_size": 1 << 40}, "hidden_size", "from 1 to"),
        ({"hidden_size": "64"}, "hidden_size", "whole number"),
        ({"hidden_size": 64.0}, "hidden_size", "whole number"),
        ({"hidden_size": True}, "hidden_size", "whole number"),
        ({"hidden_size": [64]}, "hidden_size", "whole number"),
        ({"hidden_size": "absent"}, "hidden_size", "missing"),
        ({"hidden_size": 63}, "hidden_size", "multiple"),
        ({"intermediate_size": 0}, "intermediate_size", "from 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "from 1"),
        ({"num_hidden_layers": 100000}, "num_hidden_layers", "from 1"),
        ({"num_attention_heads": -1}, "num_attention_heads", "-1"),
        ({"num_key_value_heads": 3}, "num_attention_heads", "num_key_value_heads = 3"),
        ({"head_dim": 7}, "head_dim", "even"),
        ({"head_dim": 4096, "num_attention_heads": 4096}, "num_attention_heads", "times head_dim"),
        ({"vocab_size": 0}, "vocab_size", "from 1"),
        ({"max_position_embeddings": -5}, "max_position_embeddings", "-5"),
        ({"hidden_act": "relu"}, "hidden_act", "silu"),
        ({"rms_norm_eps": 0}, "rms_norm_eps", "from"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "nan"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps", "number"),
        ({"rms_norm_eps": False}, "rms_norm_eps", "number"),
        ({"rope_theta": -1.0}, "rope_theta", "-1"),
        ({"rope_theta": float("inf")}, "rope_theta", "inf"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_scaling.rope_type", "yarn"),
        ({"rope_scaling": {"rope_type": "yarn", "mrope_section": [1]}}, "rope_scaling.'mrope_section'", "not known"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling.short_factor", "missing"),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_theta", "yarn cannot scale"),
        ({"rope_scaling": LONG | {"long_factor": [1.0]}}, "rope", "1 factors"),
        ({"rope_scaling": LONG | {"short_factor": [1.0, "2"]}}, "short_factor", "number"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor", "missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor", "from 1"),
        ({"rope_scaling": [1]}, "rope_scaling", "mapping"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type", "string"),
        ({"rope_parameters": {"partial_rotary_factor": 0.45}}, "head_dim", "even"),
        (
            {"rope_scaling": LLAMA3 | {"type": "llama3", "high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor",
            "above",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
        ({"attention_bias": "false"}, "attention_bias", "true or false"),
        ({"bos_token_id": 512}, "bos_token_id", "511"),
        ({"bos_token_id": [1]}, "bos_token_id", "whole number"),
        ({"eos_token_id": [1, -2]}, "eos_token_id", "-2"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id", "whole number"),
    ],
)
def test_a_bad_value_is_an_error_that_names_file_key_and_reason(changes: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(**changes)
    assert caught.value.what == str(SOURCE)
    assert caught.value.why.startswith(f"{key} ")
    assert reason in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("data", [[], "text", None, 3])
def test_a_document_that_is_not_a_mapping_is_an_error(data: Any) -> None:
    with pytest.raises(ModelError, match="not a mapping"):
        parse_config(data, SOURCE)


def test_the_plain_form_refuses_unknown_fields() -> None:
    with pytest.raises(ModelError, match="not a known key"):
        ModelConfig.from_dict(read().to_dict() | {"sliding": 4}, "manifest.yaml")
    with pytest.raises(ModelError, match=r"model\.family"):
        ModelConfig.from_dict(read().to_dict() | {"family": "other"}, "manifest.yaml")
