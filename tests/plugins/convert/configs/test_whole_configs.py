"""Whole config.json files, of vendors and of transformers 5 for every family: read, or refused by name.

``goldens/make_configs.py`` writes ``goldens/written_configs.json``.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import goldens
import pytest
from infeng_convert.api import parse_config
from infeng_convert.configs.unsupported_keys import HARMLESS, NEUTRAL

from infeng_core.errors import ModelError
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.weights import layout

WRITTEN: dict[str, dict[str, Any]] = json.loads((Path(goldens.__path__[0]) / "written_configs.json").read_text())
WRAPPED = {"gemma3": "gemma3_text", "mistral3": "mistral", "qwen3_vl": "qwen3"}
RUN = sorted(name for name in WRITTEN if not name.startswith("not run"))

PUBLISHED: dict[str, str] = {
    "Qwen--Qwen3-30B-A3B": "qwen3_moe",
    "Qwen--Qwen3-8B": "qwen3",
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": "qwen3_moe",
    "Qwen--Qwen3-VL-4B-Instruct": "qwen3",
    "Qwen--Qwen3.5-27B": "architectures is Qwen3_5ForConditionalGeneration, which this version does not run",
    "deepseek-ai--DeepSeek-V3": "architectures is DeepseekV3ForCausalLM, which this version does not run",
    "google--gemma-4-26B-A4B": "architectures is Gemma4ForConditionalGeneration, which this version does not run",
    "meta-llama--Meta-Llama-3.1-8B": "llama",
    "mistralai--Mixtral-8x7B-v0.1": "mixtral",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "architectures is NemotronHForCausalLM, which this version",
    "openai--gpt-oss-20b": "gpt_oss",
}
"""The family of each, or why it is refused."""


def read(config: object) -> ModelConfig:
    return parse_config(config, "config.json")  # type: ignore[arg-type]


@pytest.fixture
def published(third_party: Path) -> dict[str, Any]:
    """The files of vendors by their names."""
    files = [*(third_party / "configs" / "published").glob("*.json"), *(third_party / "configs").glob("*.json")]
    return {path.name.removesuffix(".config.json"): json.loads(path.read_text()) for path in files}


def test_every_published_file_is_read_in_silence_or_refused_by_name(
    published: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert published.keys() >= PUBLISHED.keys()
    for name, config in published.items():
        expected = PUBLISHED.get(name)
        if expected is not None and " " in expected:
            with pytest.raises(ModelError, match=expected):
                read(config)
        else:
            assert expected in (None, read(config).family), name
    assert capfd.readouterr().err == ""


def test_qwen3_coder_is_read_with_the_sizes_of_its_file(published: dict[str, Any]) -> None:
    config = read(published["Qwen--Qwen3-Coder-480B-A35B-Instruct"])
    assert (config.layers, config.experts, config.experts_per_token, config.expert_intermediate) == (62, 160, 8, 2560)
    assert config.share_of_chosen and not config.windows and not config.shared_intermediate


def test_the_text_part_of_qwen3_vl_is_a_qwen3(published: dict[str, Any]) -> None:
    config = read(published["Qwen--Qwen3-VL-4B-Instruct"])
    assert (config.family, config.hidden, config.layers, config.rope.theta) == ("qwen3", 2560, 36, 5e6)
    assert config.tie_embeddings and config.rope.kind == "default"
    assert {vector.name for vector in layout(config).vectors} >= {"layers.0.q_norm", "layers.0.k_norm"}


@pytest.mark.parametrize("name", RUN)
def test_configs_written_by_transformers_are_read_without_warnings(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config, family = WRITTEN[name], name.partition(",")[0]
    found = read(config)
    assert found.family == WRAPPED.get(family, family)
    assert capfd.readouterr().err == ""
    inner = config.get("text_config", config)
    if count := inner.get("num_local_experts", inner.get("num_experts")):
        assert (found.experts, found.experts_per_token) == (count, inner["num_experts_per_tok"])
    if kinds := inner.get("layer_types"):
        assert [window > 0 for window in found.windows or [0] * found.layers] == [kind[0] == "s" for kind in kinds]


def test_every_family_has_a_config_written_by_transformers() -> None:
    from infeng_core.models.families import builtin

    assert {WRAPPED.get(name, name) for name in RUN} >= set(builtin())


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - set(RUN)))
def test_configs_of_other_families_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=WRITTEN[name]["architectures"][0]):
        read(WRITTEN[name])


def test_a_base_with_adapters_within_its_checkpoint_is_to_be_unpacked() -> None:
    config = {"architectures": ["GraniteSwitchForCausalLM"], "model_type": "granite_switch", "num_adapters": 12}
    with pytest.raises(ModelError, match="a control token for each") as caught:
        read(config)
    assert "infeng unpack CHECKPOINT DEST" in str(caught.value.remedy)


def test_no_key_is_in_two_tables() -> None:
    assert [key for key in NEUTRAL if HARMLESS.fullmatch(key)] == []
    for family in families().values():
        assert set(getattr(family, "STATES", {})) <= NEUTRAL.keys()


def test_both_names_of_the_number_of_experts_are_read_and_must_agree() -> None:
    for name in ("qwen3_moe", "qwen2_moe", "olmoe", "mixtral", "granitemoe", "gpt_oss"):
        config = {key: value for key, value in WRITTEN[name].items() if not key.endswith("_experts")}
        for spelled in ({"num_experts": 12}, {"num_local_experts": 12}, {"num_experts": 12, "num_local_experts": 12}):
            assert read(config | spelled).experts == 12
        with pytest.raises(ModelError, match="num_local_experts is 11, and num_experts is 12: they mean the same"):
            read(config | {"num_experts": 12, "num_local_experts": 11})


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("qwen3", {"use_qk_norm": False}, "use_qk_norm is False, and models of family qwen3 are otherwise"),
        ("llama", {"use_qk_norm": True}, "use_qk_norm is True, which family llama does not run"),
        ("llama", {"is_causal": False}, "is_causal is False"),
        ("olmo3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters are for all layers"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling says otherwise than rope_p"),
        ("gemma2", {"sliding_window": None}, "sliding_window is not set, and layer_types has layers with a window"),
        ("qwen3_moe", {"num_local_experts": 4096, "num_hidden_layers": 4096}, "num_experts is 4096 in each of 4096"),
    ],
)
def test_a_key_that_would_change_results_is_refused_by_name(name: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        read(WRITTEN[name] | changes)


def test_an_unknown_key_that_is_set_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    plain = read(WRITTEN["llama"])
    assert read(WRITTEN["llama"] | {"gate_of_my_own": 0, "unsloth_version": "1", "_note": "x"}) == plain
    assert capfd.readouterr().err == ""
    assert read(WRITTEN["llama"] | {"gate_of_my_own": 2}) == plain
    assert "gate_of_my_own" in capfd.readouterr().err


def test_gpt_oss_without_rope_parameters_has_those_of_its_class() -> None:
    own = WRITTEN["gpt_oss"]
    bare = {key: value for key, value in own.items() if key != "rope_parameters"}
    expected = read(own).rope
    assert expected.kind == "yarn" and expected.theta == 150000.0
    for changes in ({}, {"rope_scaling": None}, {"rope_parameters": None}):
        assert read(bare | changes).rope == expected
    assert read(bare | {"rope_parameters": {}}).rope.kind == "default"  # as transformers 5 reads it
    assert read(bare | {"rope_scaling": {"rope_type": "default"}}).rope.kind == "default"


ODD = (None, True, -1, 0, 1, 3, 1 << 40, 10**400, 0.5, 1e300, math.nan, math.inf, "", "x" * 300, [], [1], ["x"], {})
ODD += ({"rope_type": "yarn"}, [None] * 70000, {"a": {"b": []}})


def variants(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a config without each of its keys, and with each of them odd; the same inside of what it holds."""
    for key, value in config.items():
        yield {other: one for other, one in config.items() if other != key}
        yield from ({**config, key: odd} for odd in ODD)
        if isinstance(value, dict) and key != "vision_config":
            yield from ({**config, key: inner} for inner in variants(value))


@pytest.mark.slow
def test_no_value_of_a_key_does_more_than_a_refusal(published: dict[str, Any]) -> None:
    outcomes = {"read": 0, "refused": 0}
    for whole in (*published.values(), *WRITTEN.values()):
        for config in variants(whole):
            try:
                found = read(config)
                assert found.layers * max(found.experts, 1) <= 1 << 16
                outcomes["read"] += 1
            except ModelError as error:
                assert error.remedy and len(str(error)) < 2000
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 4000, outcomes
