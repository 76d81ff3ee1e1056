"""adapter_config.json has PEFT's meaning, and unsupported fields are refused by name."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from goldens import targets
from infeng_convert.api import parse_config
from infeng_peft.config import PeftConfig, read_peft_config

from infeng_core.errors import ModelError
from infeng_core.formats.adapters.snapshot import Snapshot
from infeng_core.formats.adapters.target_modules import target_modules

SITES = target_modules(parse_config({"architectures": ["LlamaForCausalLM"], **targets.MODEL}, "config.json"))
PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


def read_folder(folder: Path) -> PeftConfig:
    with contextlib.ExitStack() as stack:
        return read_peft_config(folder, Snapshot(stack))


def read(folder: Path, **changes: Any) -> PeftConfig:
    document = {key: value for key, value in (PLAIN | changes).items() if value != "absent"}
    (folder / "adapter_config.json").write_text(json.dumps(document))
    return read_folder(folder)


GOLDENS = list(zip(targets.CONFIGS, targets.answers(), strict=True))
LOOKING = [config for config in targets.CONFIGS if ".(?!" in str(config["target_modules"])]


@pytest.mark.parametrize(("config", "answer"), [golden for golden in GOLDENS if golden[0] not in LOOKING])
def test_modules_ranks_and_scalings_equal_pefts(config: Any, answer: Any, tmp_path: Path) -> None:
    found = read(tmp_path, **config)
    lora = {
        name: [found.rank_of(name), found.scaling_of(name)]
        for name, site in SITES.matrices.items()
        if found.is_target(name, plain=site.kind == "linear")
    }
    saved = {name for name in SITES.modules() if found.saves(name)}
    assert lora == ({} if answer is None else answer["lora"])
    assert answer is None or saved == set(answer["saved"])


def test_a_lookahead_excludes_a_vision_tower(tmp_path: Path) -> None:
    found = read(tmp_path, target_modules=r"^(?!.*(?:vision|layers\.0\.))(?!.*mlp).*(q_proj|up_proj)$")
    assert {name for name in SITES.matrices if found.is_target(name)} == {
        name for name in SITES.matrices if name.endswith("q_proj") and ".0." not in name
    }


@pytest.mark.parametrize("config", LOOKING)
def test_a_lookahead_inside_a_pattern_is_refused_by_name(config: Any, tmp_path: Path) -> None:
    wanted = r"target_modules holds .*, which uses a negative lookahead that is not at the beginning \(\(\?!\)"
    with pytest.raises(ModelError, match=wanted):
        read(tmp_path, **config)


def test_fields_without_effect_on_the_output_are_ignored(tmp_path: Path) -> None:
    for changes in (
        {"inference_mode": True, "lora_dropout": 0.1, "task_type": "CAUSAL_LM", "revision": "main"},
        {"auto_mapping": {"base_model_class": "X"}, "peft_version": "0.99", "megatron_core": "megatron.core"},
        {"fan_in_fan_out": True, "qalora_group_size": 16, "loftq_config": {"a": 1}, "merge_weights": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": False},
        {"use_qalora": False, "layer_replication": None, "target_parameters": [], "velora_config": {}},
        {"something_of_tomorrow": None},
        {"alora_invocation_tokens": None},
        {"alora_invocation_tokens": []},
    ):
        assert read(tmp_path, **changes).rank == 8


def test_an_invocation_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, alora_invocation_tokens=[5, 0, 5], lora_bias=True).invocation == (5, 0, 5)
    assert read(tmp_path).invocation == ()


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type", "only LORA adapters"),
        ({"peft_type": "absent"}, "peft_type", "is missing"),
        ({"alora_invocation_tokens": "go"}, "alora_invocation_tokens", "list of whole numbers"),
        ({"alora_invocation_tokens": {"a": 1}}, "alora_invocation_tokens", "list of whole numbers"),
        ({"alora_invocation_tokens": [5, -1]}, "alora_invocation_tokens", "must be from 0"),
        ({"alora_invocation_tokens": [1.0]}, "alora_invocation_tokens", "whole number"),
        ({"alora_invocation_tokens": [True]}, "alora_invocation_tokens", "whole number"),
        ({"alora_invocation_tokens": [7] * 65}, "alora_invocation_tokens", "has 65 tokens, it may have 64"),
        ({"alora_invocation_tokens": [7], "use_dora": True}, "use_dora", "together with alora_invocation_tokens"),
        ({"alora_invocation_tokens": [7], "bias": "all"}, "bias", "change the tokens before"),
        ({"alora_invocation_tokens": [7], "modules_to_save": ["norm"]}, "modules_to_save", "change the tokens before"),
        (
            {"alora_invocation_tokens": [7], "target_parameters": ["experts.down_proj"]},
            "target_parameters",
            "together with alora_invocation_tokens",
        ),
        ({"use_qalora": True}, "use_qalora", "not run here"),
        ({"megatron_config": {"a": 1}}, "megatron_config", "not run here"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication", "not run here"),
        ({"target_parameters": 3}, "target_parameters", "must be a list of names"),
        ({"target_parameters": ["experts.down_proj"], "lora_bias": True}, "lora_bias", "PEFT does not define"),
        ({"arrow_config": {"top_k": 3}}, "arrow_config", "not run here"),
        ({"velora_config": {"scale": 1.0}}, "velora_config", "not run here"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora", "not run here"),
        ({"monteclora_config": {"a": 1}}, "monteclora_config", "not run here"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config", "not run here"),
        ({"trainable_token_indices": [5, 5]}, "trainable_token_indices", "names a token twice"),
        ({"trainable_token_indices": [-1]}, "trainable_token_indices", "must be from 0"),
        ({"trainable_token_indices": [*range(257)]}, "trainable_token_indices", "it may have 1 to 256"),
        ({"trainable_token_indices": {"lm_head": []}}, "trainable_token_indices", "0 tokens for 'lm_head'"),
        ({"trainable_token_indices": {"a" * 5000: [1]}}, "trainable_token_indices", "lists by names of modules"),
        ({"trainable_token_indices": 7}, "trainable_token_indices", "list of whole numbers"),
        ({"something_of_tomorrow": 1}, "something_of_tomorrow", "not run here"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights", "path_initial_model_for_weight_conversion=DIR"),
        ({"init_lora_weights": "olora"}, "init_lora_weights", "changes the base model"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights", "changes the base model"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights", "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": "corda"}, "init_lora_weights", "changes the base model"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights", "changes the base model"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights", "changes the base model"),
        ({"init_lora_weights": "magic"}, "init_lora_weights", "not known here"),
        ({"r": 0}, "r", "from 1 to 256"),
        ({"r": 257}, "r", "from 1 to 256"),
        ({"r": 8.0}, "r", "whole number"),
        ({"r": True}, "r", "whole number"),
        ({"rank_pattern": {"q_proj": 1 << 40}}, "rank_pattern.q_proj", "from 1 to 256"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern", "mapping"),
        ({"rank_pattern": {"": 4}}, "rank_pattern", "no name of a module"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj", "number"),
        ({"lora_alpha": 1e300}, "lora_alpha", "from"),
        ({"bias": "some"}, "bias", "none, all or lora_only"),
        ({"use_dora": "yes"}, "use_dora", "true or false"),
        ({"use_dora": True, "lora_bias": True}, "lora_bias", "together with use_dora"),
        ({"target_modules": 7}, "target_modules", "list of names"),
        ({"target_modules": ["q_proj", 7]}, "target_modules", "list of names"),
        ({"target_modules": ["q" * 5000]}, "target_modules", "list of names"),
        ({"target_modules": ".*", "layers_to_transform": [1]}, "layers_to_transform", "target_modules is a string"),
        ({"layers_to_transform": "1"}, "layers_to_transform", "number"),
        ({"layers_to_transform": [True]}, "layers_to_transform", "number"),
        ({"modules_to_save": {"a": 1}}, "modules_to_save", "list of names"),
        ({"base_model_name_or_path": 5}, "base_model_name_or_path", "string"),
    ],
)
def test_wrong_and_unsupported_fields_are_refused_by_name(
    changes: Any, field: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        read(tmp_path, **changes)
    assert caught.value.why.startswith(field) and caught.value.remedy
    assert caught.value.what == str(tmp_path / "adapter_config.json")


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "layers_pattern", "modules_to_save"])
@pytest.mark.parametrize("pattern", ["(", r"(q)\1", "q(?=_)"])
def test_a_bad_pattern_is_an_error_that_names_the_field(key: str, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{key} holds .*, which (is no regular expression|uses a)"):
        read(tmp_path, **{key: pattern})


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_a_bad_pattern_among_good_ones_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{key} holds '\(k', which is no regular expression \(missing \)"):
        read(tmp_path, **{key: {"q_proj": 4, "(k": 5, "v_proj": 6}})
    with pytest.raises(ModelError, match=rf"{key} holds .*, which is one of 5000 patterns: 4096 are possible"):
        read(tmp_path, **{key: {f"layers.{i}": 4 for i in range(5000)}})


def test_a_pattern_may_ignore_case(tmp_path: Path) -> None:
    assert read(tmp_path, target_modules="(?i).*Q_PROJ").is_target("model.layers.0.self_attn.q_proj")


def test_a_hostile_pattern_in_any_field_is_refused_quickly(tmp_path: Path) -> None:
    hostile = "((.*)*)*x"
    config = read(
        tmp_path,
        target_modules=hostile,
        exclude_modules=hostile,
        modules_to_save=[hostile],
        rank_pattern={hostile: 3},
        alpha_pattern={hostile: 3},
    )
    assert not config.is_target("model.layers.0.self_attn.q_proj")
    assert config.rank_of("model.layers.0.self_attn.q_proj") == 8
    layers = read(tmp_path, layers_to_transform=[0], layers_pattern=hostile)
    assert not layers.is_target("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a mapping"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"r": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"r": 8, "r": 9}', "given twice"),
        (b'{"lora_alpha": NaN}', "not a JSON number"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b" " * ((4 << 20) + 1), "more than 4194304 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_bytes(data)
    with pytest.raises(ModelError, match=reason):
        read_folder(tmp_path)


def test_a_config_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "adapter_config.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelError, match="more than 4194304 bytes"):
        read_folder(tmp_path)
