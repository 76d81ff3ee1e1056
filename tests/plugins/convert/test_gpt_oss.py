"""gpt-oss-20b from its config.json alone, and the shapes of its checkpoint in bf16."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.families import GPT_OSS, GPT_OSS_PLAIN
from infeng_bench.models.synthetic import tensor_shapes
from infeng_convert.api import parse_config
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.survey import active_parameters, parameters, survey, weight_bytes
from safetensors.numpy import load_file, save_file

from infeng_core.errors import ModelError
from infeng_core.formats.format_choice import FormatChoice, choose
from infeng_core.formats.quant import builtin_format
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.groups import layer_groups
from infeng_core.models.ops import Attention, ExpertLinear, GatedMul
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config

KINDS = ["sliding_attention", "full_attention"]
TWENTY: dict[str, Any] = {  # as openai/gpt-oss-20b has it
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": KINDS * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}


def config(**changes: Any) -> ModelConfig:
    return parse_config({**TWENTY, **changes}, "config.json")


def test_the_20b_has_the_sizes_that_it_was_released_with() -> None:
    made = config()
    arranged = layout(made)
    assert parameters(arranged) == 20_914_757_184
    assert active_parameters(arranged, made) == pytest.approx(4.19e9, rel=0.01)  # with embeddings and head
    assert made.windows == (128, 0) * 12 and made.share_of_chosen and made.experts_per_token == 4
    assert (made.gate_slope, made.gate_limit, made.activation) == (1.702, 7.0, "swiglu")
    rope = made.rope
    assert (rope.kind, rope.factor, rope.truncate, rope.theta) == ("yarn", 32.0, False, 150000.0)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    assert ModelConfig.from_dict(json.loads(json.dumps(made.to_dict())), "manifest") == made


def test_half_of_the_layers_keep_only_a_window() -> None:
    groups = layer_groups(config())
    assert {group.window: len(group.layers) for group in groups} == {0: 12, 128: 12}


def test_experts_take_eight_and_a_half_bits_a_weight() -> None:
    arranged = layout(config())
    formats = {spec.name: "int8-g32" if spec.experts else "int8-row" for spec in arranged.tensors}
    experts = 24 * 32 * 3 * 2880 * 2880
    found = weight_bytes(arranged, formats, builtin_format)
    others = parameters(arranged) - experts  # a byte each; vectors and scales take more
    assert found == pytest.approx(experts * 8.5 / 8 + others, rel=0.002)


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    least = {key: TWENTY[key] for key in ("architectures", "hidden_size", "intermediate_size", "vocab_size")}
    least |= {"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32}
    made = parse_config({**least, "eos_token_id": 200002}, "config.json")
    assert made == config()
    new = {"rope_parameters": {**TWENTY["rope_scaling"], "rope_theta": 150000}, "rope_scaling": None}
    assert config(**new, rope_theta=None) == config()


def test_every_layer_has_sinks_and_every_linear_a_bias() -> None:
    graph = families()["gpt_oss"].graph(config())
    sinks = [op.sinks for op in graph.ops if isinstance(op, Attention)]
    assert sinks == [f"layers.{layer}.sinks" for layer in range(24)]
    gates = {
        step for op in graph.ops if isinstance(op, ExpertLinear) for step in op.steps if isinstance(step, GatedMul)
    }
    assert gates == {GatedMul("swiglu", 1.702, 7.0)}
    names = {vector.name: vector.size for vector in layout(config()).vectors if vector.name.startswith("layers.3.")}
    assert names == {
        "layers.3.attn_norm": 2880,
        "layers.3.mlp_norm": 2880,
        "layers.3.sinks": 64,
        "layers.3.qkv_proj.bias": 5120,
        "layers.3.o_proj.bias": 2880,
        "layers.3.router.bias": 32,
        "layers.3.experts.gate_up_proj.bias": 32 * 5760,
        "layers.3.experts.down_proj.bias": 32 * 2880,
    }


def test_a_directory_with_only_a_config_gives_the_needed_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TWENTY))
    made = survey(tmp_path, choose(load_config(None), builtin_format), builtin_format, needs_weights=False)
    assert (made.why_not, made.method, made.parameters) == ("", "MXFP4", 20_914_757_184)
    experts = ["layers.*.experts.gate_up_proj", "layers.*.experts.down_proj"]
    assert made.formats["int8-g32"] == experts and made.formats["bf16"] == ["layers.*.router"]
    assert made.weight_bytes == pytest.approx(22.1e9, rel=0.01)
    asked = survey(tmp_path, FormatChoice("int4-p32"), builtin_format, needs_weights=False)
    assert asked.weight_bytes < 12e9


def test_shapes_of_its_checkpoint_in_bf16_are_those_of_transformers() -> None:
    shapes = dict(tensor_shapes(TWENTY))
    name = "model.layers.23.mlp.experts"
    assert shapes[f"{name}.gate_up_proj"] == (32, 2880, 5760) and shapes[f"{name}.gate_up_proj_bias"] == (32, 5760)
    assert shapes[f"{name}.down_proj"] == (32, 2880, 2880) and shapes[f"{name}.down_proj_bias"] == (32, 2880)
    assert sum(map(math.prod, shapes.values())) == 20_914_757_184


def test_columns_of_experts_are_found_again(tmp_path: Path) -> None:
    checkpoint, stored = open_checkpoint(GPT_OSS.write(tmp_path / "m")), dict(GPT_OSS.tensors())
    specs = {spec.name: spec for spec in (*checkpoint.layout.tensors, *checkpoint.layout.vectors)}
    gate, up = specs["layers.1.experts.gate_up_proj"].parts[6:8]  # of expert 3
    whole = stored["model.layers.1.mlp.experts.gate_up_proj"][3]  # (inputs, outputs)
    np.testing.assert_array_equal(checkpoint.array(gate), whole[:, ::2].T)
    np.testing.assert_array_equal(checkpoint.array(up), whole[:, 1::2].T)
    bias = specs["layers.1.experts.gate_up_proj.bias"].parts[7]
    np.testing.assert_array_equal(checkpoint.array(bias), stored[f"{gate.source}_bias"][3, 1::2])
    down = specs["layers.1.experts.down_proj"].parts[5]
    np.testing.assert_array_equal(checkpoint.array(down), stored[down.source][5].T)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ("gate_up_proj", r"gate_up_proj is \(5, 128, 64\), config says \(5, 64, 128\)"),
        ("gate_up_proj_bias", r"gate_up_proj_bias is \(128, 5\), config says \(5, 128\)"),
    ],
)
def test_experts_in_another_layout_are_refused(tmp_path: Path, tensor: str, why: str) -> None:
    directory = GPT_OSS_PLAIN.write(tmp_path / "m")
    tensors, name = load_file(directory / "model.safetensors"), f"model.layers.0.mlp.experts.{tensor}"
    tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(-1, -2))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=why):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"swiglu_limit": 0.0}, "swiglu_limit is 0.0, it must be from"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok.*from 1 to 32"),
        ({"layer_types": ["chunked_attention"] * 24}, "layer_types has 'chunked_attention'"),
    ],
)
def test_an_unsupported_config_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        config(**changes)


def test_clamped_gates_of_another_family_are_refused() -> None:
    llama = {key: TWENTY[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    llama |= {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 64, "swiglu_limit": 7.0}
    with pytest.raises(ModelError, match=r"swiglu_limit is 7\.0, which family llama does not run"):
        parse_config(llama, "config.json")
