"""The layout covers each checkpoint tensor once and puts every row on a column of its own."""

import numpy as np
import pytest

from infeng_core.models.config import ModelConfig
from infeng_core.models.rope_config import RopeConfig
from infeng_core.models.weights import IGNORED, Layout, TensorSpec, layout


def config(**changes: object) -> ModelConfig:
    sizes: dict[str, object] = {
        "hidden": 36,
        "intermediate": 50,
        "layers": 2,
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 12,
    }
    return ModelConfig(
        **(
            {"family": "llama", "vocab": 40, "max_positions": 64, "rms_eps": 1e-5}
            | sizes
            | {"rope": RopeConfig(1e4)}
            | changes
        )
    )  # type: ignore[arg-type]


def tensor(made: Layout, name: str) -> TensorSpec:
    return next(spec for spec in made.tensors if spec.name == name)


def test_qkv_start_on_panel_boundaries() -> None:
    qkv = tensor(layout(config()), "layers.1.qkv_proj")
    assert [part.first_panel for part in qkv.parts] == [0, 3, 4]  # 36 rows of q fill 3 panels, 12 of k and v one each
    assert (qkv.panels, qkv.n, qkv.k) == (5, 80, 36)
    assert [part.source.split(".")[-2] for part in qkv.parts] == ["q_proj", "k_proj", "v_proj"]
    assert qkv.parts[2].columns().tolist() == list(range(64, 76))


def test_gate_and_up_panels_alternate() -> None:
    gate_up = tensor(layout(config()), "layers.0.gate_up_proj")
    gate, up = (part.columns() for part in gate_up.parts)
    assert (gate_up.panels, gate_up.n) == (8, 128)
    assert gate[:18].tolist() == [*range(16), 32, 33]
    assert (up == gate + 16).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_no_two_rows_share_a_column_and_none_falls_outside(tied: bool, bias: bool) -> None:
    made = layout(config(tie_embeddings=tied, attention_bias=bias, mlp_bias=bias))
    for spec in (*made.tensors, *made.vectors):
        columns = np.concatenate([part.columns() for part in spec.parts])
        size = spec.panels * 16 if isinstance(spec, TensorSpec) else spec.size
        assert len(np.unique(columns)) == len(columns) and columns.max() < size
    names = {spec.name for spec in made.tensors}
    assert ("lm_head" in names) != tied
    vectors = {spec.name: spec.size for spec in made.vectors}
    assert ("layers.0.qkv_proj.bias" in vectors) == bias
    if bias:
        assert vectors["layers.0.gate_up_proj.bias"] == 128 and vectors["layers.1.down_proj.bias"] == 48


def test_tied_embeddings_may_be_stored_under_either_name() -> None:
    tied = tensor(layout(config(tie_embeddings=True)), "embed").parts[0]
    assert (tied.source, tied.alternative) == ("model.embed_tokens.weight", "lm_head.weight")
    assert tensor(layout(config()), "embed").parts[0].alternative is None


def test_each_source_is_listed() -> None:
    sources = layout(config(attention_bias=True)).sources()
    assert len(sources) == 3 + 2 * (2 + 7 + 4)
    assert "model.layers.1.self_attn.o_proj.bias" in sources


def test_stored_rotary_tables_and_causal_masks_are_ignored() -> None:
    assert IGNORED.search("model.layers.3.self_attn.rotary_emb.inv_freq")
    assert IGNORED.search("gpt_neox.layers.3.attention.bias")
    assert IGNORED.search("gpt_neox.layers.3.attention.masked_bias")
    assert not IGNORED.search("gpt_neox.layers.3.attention.dense.bias")
    assert not IGNORED.search("model.layers.3.self_attn.q_proj.weight")
