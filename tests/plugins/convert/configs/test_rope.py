"""Frequencies and factors of rope parameters, as far as golden files do not cover them."""

import numpy as np
import pytest
from infeng_convert.api import parse_config

from infeng_core.models.config import ModelConfig
from infeng_core.models.rope import inverse_frequencies, query_scale, tables, variant
from infeng_core.models.rope_config import RopeConfig

FACTORS = {"short_factors": (1.0, 1.5, 2.0, 3.0), "long_factors": (1.0, 2.0, 4.0, 8.0)}
LONG = RopeConfig(10000.0, "longrope", original_max_positions=64, **FACTORS)
DYNAMIC = RopeConfig(10000.0, "dynamic", factor=4.0, original_max_positions=64)


def read(**rope: object) -> RopeConfig:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    data = {"architectures": ["LlamaForCausalLM"], **sizes, "vocab_size": 32, "max_position_embeddings": 1024}
    return parse_config(data | rope, "config.json").rope


def test_longrope_takes_the_long_factors_beyond_the_original_context() -> None:
    plain = inverse_frequencies(RopeConfig(10000.0), 8)
    for positions, factors in ((64, LONG.short_factors), (65, LONG.long_factors)):
        np.testing.assert_allclose(inverse_frequencies(LONG, 8, positions) * factors, plain, rtol=1e-6)


def test_dynamic_stretches_theta_only_beyond_the_original_context() -> None:
    plain = RopeConfig(10000.0)
    np.testing.assert_array_equal(inverse_frequencies(DYNAMIC, 8, 64), inverse_frequencies(plain, 8))
    stretched = RopeConfig(10000.0 * (4.0 * 128 / 64 - 3.0) ** (8 / 6))
    np.testing.assert_allclose(inverse_frequencies(DYNAMIC, 8, 128), inverse_frequencies(stretched, 8), rtol=1e-6)


def test_contexts_with_different_rope_tables_have_different_variants() -> None:
    assert variant(LONG, 64) == "short rope" and variant(LONG, 65) == variant(LONG, 900) == "long rope"
    assert variant(DYNAMIC, 64) == "" and variant(DYNAMIC, 128) != variant(DYNAMIC, 256)
    assert variant(RopeConfig(10000.0, "yarn", factor=4.0, original_max_positions=64), 512) == ""


def test_a_part_of_a_head_and_an_attention_factor_show_in_the_tables() -> None:
    cos, sin = tables(RopeConfig(10000.0, partial=0.5, attention_factor=1.25), 16, 10)
    assert cos.shape == sin.shape == (10, 4)
    np.testing.assert_allclose(cos**2 + sin**2, 1.25**2, rtol=1e-6)


def test_queries_are_scaled_by_how_often_their_position_holds_the_original_context() -> None:
    assert query_scale(RopeConfig(10000.0), 10) is None
    scale = query_scale(RopeConfig(10000.0, "yarn", original_max_positions=4, query_beta=0.5), 10)
    assert scale is not None
    np.testing.assert_allclose(scale, 1 + 0.5 * np.log(1 + np.arange(10) // 4), rtol=1e-6)


@pytest.mark.parametrize(
    ("rope", "factor"),
    [
        ({"factor": 8.0}, 0.1 * np.log(8.0) + 1),
        ({"factor": 8.0, "attention_factor": 1.5}, 1.5),
        ({"factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 8.0, "mscale": 2.0, "mscale_all_dim": 0.0}, 0.1 * np.log(8.0) + 1),
        ({}, 0.1 * np.log(4.0) + 1),  # the factor follows from the two contexts
    ],
)
def test_the_attention_factor_of_yarn_is_that_of_transformers(rope: dict[str, float], factor: float) -> None:
    found = read(rope_parameters={"rope_type": "yarn", "original_max_position_embeddings": 256, **rope})
    assert found.attention_factor == pytest.approx(factor)
    assert found.factor == rope.get("factor", 4.0)


def test_a_rope_that_scales_q_alone_is_read_back() -> None:
    config = parse_config(
        {
            "architectures": ["Ministral3ForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "rope_parameters": {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64},
        },
        "config.json",
    )
    assert (config.rope.kind, config.rope.query_beta, config.rope.original_max_positions) == ("default", 0.1, 64)
    assert ModelConfig.from_dict(config.to_dict(), "manifest.yaml") == config


def test_old_and_new_rope_keys_give_the_same_rope() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
    assert read(rope_theta=5e5, rope_scaling=yarn) == read(rope_parameters={"rope_theta": 5e5, **yarn})
