"""The families by their config.json: which keys each reads, and what they become."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from infeng_convert.api import config_keys, parse_config

from infeng_core.errors import ModelError
from infeng_core.models.config import ModelConfig
from infeng_core.models.decoder import graph
from infeng_core.models.families import added, builtin, describe, families
from infeng_core.models.ops import Attention, Graph, Linear
from infeng_core.models.typed_fields import Fields
from infeng_core.models.weights import Layout, TensorSpec, layout, stacked
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import MODEL_FAMILIES
from infeng_core.plug.manager import Plugins

CONFIG: dict[str, Any] = {
    "architectures": ["TinyForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
}


class Tiny:
    """A family of a plugin, which reads one key of its own."""

    FAMILY, ARCHITECTURES = "tiny", ("TinyForCausalLM",)
    DEFAULTS: ClassVar = {"num_key_value_heads": 1}

    def weights(self, config: ModelConfig) -> Layout:
        return Layout((TensorSpec("embed", config.hidden, stacked(("wte.weight", config.vocab))),), ())

    def graph(self, config: ModelConfig) -> Graph:
        return graph(config)

    def terms(self, fields: Fields, config: ModelConfig) -> dict[str, Any]:
        return {"logit_softcap": fields.number("cap", 1.0, 100.0)}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A family that a plugin has added."""
    monkeypatch.setitem(added, "tiny", Tiny())
    yield
    layout.cache_clear()


def test_the_builtin_families_are_found() -> None:
    found = {name: module.ARCHITECTURES for name, module in families().items()}
    assert found.items() >= {"llama": ("LlamaForCausalLM",), "qwen2": ("Qwen2ForCausalLM",)}.items()


def test_every_family_of_the_core_comes_through_the_hook() -> None:
    plugins = Plugins.discover(load_config())
    core = plugins.plugin("core").manifest
    assert core is not None and sorted(core.provides["model_families"]) == sorted(builtin())
    assert dict(plugins.each(MODEL_FAMILIES)).items() >= builtin().items()


def test_every_module_of_config_keys_is_for_a_family_of_the_core() -> None:
    assert config_keys().keys() == families().keys()


def test_the_family_of_a_plugin_says_itself_which_keys_it_reads(tiny: None) -> None:
    assert "llama (LlamaForCausalLM)" in describe().split(", ")
    assert "tiny (TinyForCausalLM)" in describe().split(", ")
    config = parse_config(CONFIG | {"cap": 30}, "config.json")
    assert (config.family, config.kv_heads, config.logit_softcap) == ("tiny", 1, 30.0)
    assert [part.source for part in layout(config).tensors[0].parts] == ["wte.weight"]


def test_without_the_plugin_its_family_is_unknown() -> None:
    with pytest.raises(ModelError, match=r"TinyForCausalLM.*use a model of a supported family: .*llama \(Llama"):
        parse_config(CONFIG, "config.json")


QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def test_qwen2_has_biases_on_q_k_and_v_alone_whatever_its_config_says() -> None:
    for changes in ({}, {"attention_bias": True}, {"attention_bias": False}):
        config = parse_config(QWEN2 | changes, "config.json")
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


def read(changes: dict[str, Any], **more: Any) -> ModelConfig:
    return parse_config(CONFIG | changes | more, "config.json")


def of(family: str, **changes: Any) -> dict[str, Any]:
    """Return what a config.json of a family says at least, without a head_dim."""
    least = {"architectures": list(families()[family].ARCHITECTURES), "num_hidden_layers": 4, "num_key_value_heads": 2}
    return least | changes


SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, (0, 0, 0, 64)),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0}, ()),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "layer_types": SLIDING}, (64, 0, 64, 0)),
        ("mistral", {}, (4096,) * 4),
        ("mistral", {"sliding_window": None}, ()),
        ("ministral", {"sliding_window": 8, "layer_types": SLIDING}, (8, 0, 8, 0)),
        ("smollm3", {"sliding_window": 8, "use_sliding_window": True}, (0, 0, 0, 8)),
        ("phi3", {"sliding_window": 2047}, (2047,) * 4),
        ("starcoder2", {}, ()),
        ("starcoder2", {"sliding_window": 16}, (16,) * 4),
        ("olmo3", {}, (4096, 4096, 4096, 0)),
        ("gemma2", {"sliding_window": 16}, (16, 0, 16, 0)),
        ("gemma3_text", {"sliding_window": 16, "sliding_window_pattern": 3}, (16, 16, 0, 16)),
    ],
)
def test_windows_are_in_the_familys_layers(family: str, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = read(of(family, **changes))
    assert config.windows == windows
    attention = [op.window for op in families()[family].graph(config).ops if isinstance(op, Attention)]
    assert attention == list(windows or (0,) * 4)


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        ("qwen2", {"layer_types": SLIDING}, "layer_types has sliding windows, and use_sliding_window is not set"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types .*must be a list of 4"),
        ("mistral", {"layer_types": ["chunked_attention"] * 4}, "layer_types has 'chunked_attention'"),
        ("llama", {"sliding_window": 64}, "sliding_window is 64, which family llama does not run"),
        ("llama", {"layer_types": SLIDING}, "layer_types is"),
        ("llama", {"embedding_multiplier": 12.0}, "embedding_multiplier is 12.0"),
        ("llama", {"num_local_experts": 8}, "num_local_experts is 8"),
        ("qwen3", {"num_experts": 128}, "num_experts is 128"),
        ("granite", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "no_rope_layers is"),
        ("ministral3", {}, "rope_parameters is missing"),
        ("mistral", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "'llama_4_scaling_beta' is not known"),
        ("olmo2", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ("starcoder2", {"norm_type": "rms_norm"}, "norm_type is 'rms_norm', and models of family starcoder2 are other"),
        ("starcoder2", {"mlp_type": "gated"}, "mlp_type is 'gated', and models of family starcoder2 are otherwise"),
        ("llama", {"norm_type": "layer_norm"}, "norm_type is 'layer_norm', which family llama does not run"),
    ],
)
def test_an_unsupported_key_that_changes_results_is_named(family: str, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=key):
        read(of(family, **changes))


def test_starcoder2_is_read_as_it_was_published(capfd: pytest.CaptureFixture[str]) -> None:
    published = {
        "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "residual_dropout": 0.1,
        "embedding_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
        "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05,
        "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "rope_theta": 999999.4420358813, "sliding_window": 4096, "transformers_version": "4.37.0.dev0",
        "use_bias": True, "use_cache": True, "vocab_size": 49152,
    }  # fmt: skip
    config = parse_config(published, "config.json")
    assert capfd.readouterr().err == ""
    assert (config.family, config.activation, config.head_dim, config.kv_heads) == ("starcoder2", "gelu_tanh", 128, 2)
    assert (config.windows, config.rms_eps, config.rope.theta) == ((4096,) * 30, 1e-5, 999999.4420358813)
    assert config.tie_embeddings and config.attention_bias and config.mlp_bias
    made = layout(config)
    weights = sum(part.rows * tensor.k for tensor in made.tensors for part in tensor.parts)
    vectors = sum(part.rows for vector in made.vectors for part in vector.parts)
    assert weights + vectors == 3_030_371_328  # of bigcode/starcoder2-3b
    without = parse_config(published | {"use_bias": False}, "config.json")
    biases = {vector.name for vector in layout(without).vectors if vector.name.endswith(".bias")}
    assert biases == {"norm.bias", *(f"layers.{i}.{name}_norm.bias" for i in range(30) for name in ("attn", "mlp"))}


def test_a_key_that_changes_nothing_is_no_error() -> None:
    neutral = {"sliding_window": None, "layer_types": ["full_attention"] * 4, "num_experts": 0, "logits_scaling": 1.0}
    assert read(of("llama", **neutral, _attn_implementation="sdpa", use_cache=True)) == read(of("llama"))


@pytest.mark.parametrize("family", sorted(set(families()) - {"llama", "qwen2"}))
def test_a_familys_config_survives_its_plain_form(family: str) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 64}
    more = {"rope_parameters": {**yarn, "llama_4_scaling_beta": 0.1}} if family == "ministral3" else {}
    config = read(of(family, **more))
    assert config.family == family
    assert ModelConfig.from_dict(config.to_dict(), "manifest.yaml") == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())), "manifest.yaml") == config


def test_a_wrapped_text_model_is_read_with_the_familys_defaults() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    config = parse_config(whole | {"eos_token_id": [1, 106], "vision_config": {}}, "config.json")
    assert (config.family, config.heads, config.kv_heads, config.head_dim) == ("gemma3_text", 8, 4, 256)
    assert (config.vocab, config.max_positions, config.eos_ids) == (262208, 131072, (1, 106))
    assert config.tie_embeddings and config.activation == "gelu_tanh" and config.attention_scale == 256**-0.5
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    assert (config.rope.theta, config.rope.factor) == (1e6, 8.0)
    assert config.local_rope is not None and (config.local_rope.theta, config.local_rope.kind) == (1e4, "default")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"text_config": {"model_type": "mistral"}}, "text_config.num_attention_heads is missing"),
        ({"text_config": {"model_type": "qwen3"}}, "text_config.model_type is 'qwen3'"),
        ({"text_config": {}}, "text_config.model_type is missing"),
        ({}, "text_config is missing"),
    ],
)
def test_a_multimodal_file_without_a_supported_text_model_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        parse_config({"architectures": ["Mistral3ForConditionalGeneration"], **changes}, "config.json")


def test_fused_tensors_are_split_by_their_rows() -> None:
    specs = {spec.name: spec for spec in layout(read(of("phi3", num_key_value_heads=1))).tensors}
    qkv, gate_up = specs["layers.0.qkv_proj"].parts, specs["layers.0.gate_up_proj"].parts
    assert [(part.source[-15:], part.begin, part.rows, part.source_rows) for part in qkv] == [
        ("qkv_proj.weight", 0, 64, 128),
        ("qkv_proj.weight", 64, 32, 128),
        ("qkv_proj.weight", 96, 32, 128),
    ]
    assert [(part.begin, part.rows, part.first_panel, part.panel_step) for part in gate_up] == [
        (0, 64, 0, 2),
        (64, 64, 1, 2),
    ]


def test_layers_with_a_window_may_have_a_rope_of_their_own() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    old = {"rope_theta": 1e6, "rope_local_base_freq": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    for written in ({"rope_parameters": nested}, old):
        config = read(of("gemma3_text", sliding_window_pattern=2, **written))
        ropes = [config.rope_of(layer) for layer in range(4)]
        assert [(rope.theta, rope.kind, rope.factor) for rope in ropes if rope] == [
            (5000.0, "default", 1.0),
            (1e6, "linear", 8.0),
        ] * 2


def test_full_attention_of_qwen2_is_accepted_as_it_is_written() -> None:
    written = {"use_sliding_window": False, "sliding_window": 64, "layer_types": ["full_attention"]}
    assert parse_config(QWEN2 | written, "config.json").windows == ()
