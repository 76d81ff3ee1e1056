"""What a graph can say beyond a Llama's: reference and vector kernels give the same bytes, and NumPy the same tokens.

Each case is a family of its own over a tiny checkpoint, with one thing that no family of the core has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from e2e import harness
from e2e.harness import VECTOR
from infeng_numpy.cache import CACHES
from numpy.typing import NDArray

from infeng_core import SamplingParams
from infeng_core.errors import AdapterError, KernelError, ModelError
from infeng_core.models import families
from infeng_core.models.config import ModelConfig
from infeng_core.models.decoder import graph as decoder_graph
from infeng_core.models.ops import (
    Apply,
    Attention,
    Embed,
    Graph,
    LayerNorm,
    Linear,
    Mul,
    Op,
    Residual,
    RmsNorm,
    Rope,
    RowOp,
    RowScale,
    Value,
)
from infeng_core.models.typed_fields import Fields
from infeng_core.models.weights import layout

PROMPT = [int(token) for token in np.random.default_rng(5).integers(4, tiny_model.VOCAB, 90)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SLOPES = (0.5, 0.25, 0.0, 0.0625)
TOLERANCE = 2e-4


def each(kind: type[Op], change: Callable[[Any], Op]) -> Callable[[ModelConfig], Graph]:
    """Return the graph of a Llama with every op of a kind changed."""

    def graph(config: ModelConfig) -> Graph:
        plain = decoder_graph(config)
        return replace(plain, ops=tuple(change(op) if isinstance(op, kind) else op for op in plain.ops))

    return graph


def alibi(config: ModelConfig, **more: Any) -> Graph:
    plain = each(Attention, lambda op: replace(op, slopes=SLOPES, **more))(config)
    return replace(plain, ops=tuple(op for op in plain.ops if not isinstance(op, Rope)))


def layer_normed(weight: bool, bias: bool) -> Callable[[ModelConfig], Graph]:
    def change(op: RmsNorm) -> LayerNorm:
        return LayerNorm(op.weight if weight else "", op.weight if bias else "", op.x, op.out, op.eps, size=72)

    return each(RmsNorm, change)


def normed_heads(config: ModelConfig) -> Graph:
    """Each head of k is normed without a weight before it is rotated."""
    ops: list[Op] = []
    for op in decoder_graph(config).ops:
        if isinstance(op, Rope):
            ops.append(RmsNorm("", op.x, op.x, 1e-5, 0.0, op.kv_heads, op.k_column, size=op.head_dim))
        ops.append(op)
    return replace(decoder_graph(config), ops=tuple(ops))


def scaled(op: Linear) -> Op:
    """The result of attention has a factor for each output before it is added to the residual stream."""
    if not op.weight.endswith("o_proj"):
        return op
    return replace(op, steps=(RowScale(op.weight.replace("o_proj", "mlp_norm")), *op.steps))


def gated(config: ModelConfig) -> Graph:
    """What a layer adds is multiplied by a function of its normed input, and the embeddings by themselves."""
    ops: list[Op] = []
    for index, op in enumerate(decoder_graph(config).ops):
        if isinstance(op, Linear) and op.weight.endswith("down_proj"):
            op = replace(op, steps=(Mul("normed", ("silu", "sigmoid", "identity")[index % 3]), *op.steps))
        ops.append(op)
        if isinstance(op, Embed):
            ops.append(Apply("hidden", "hidden", (Mul("hidden"),)))
    return replace(decoder_graph(config), ops=tuple(ops))


@dataclass(frozen=True)
class Odd:
    """A family with one thing that a Llama has not."""

    graph: Callable[[ModelConfig], Graph] = decoder_graph
    shape: dict[str, Any] = field(default_factory=dict)
    FAMILY: str = "odd"
    ARCHITECTURES: tuple[str, ...] = ("OddForCausalLM",)

    def terms(self, fields: Fields, config: ModelConfig) -> dict[str, Any]:
        """Read the size of a head of v."""
        return {"v_head_dim": fields.integer("v_head_dim", 0, 4096, 0)}


CASES = {
    "nothing": Odd(),
    "alibi": Odd(alibi),
    "alibi with a window and a cap": Odd(lambda config: alibi(config, window=20, softcap=5.0)),
    "v of larger heads": Odd(shape={"v_head_dim": 48}),
    "v of smaller heads": Odd(shape={"v_head_dim": 8}),
    "v of heads of 64 by alibi": Odd(alibi, {"v_head_dim": 64}),
    "norms without a weight": Odd(each(RmsNorm, lambda op: replace(op, weight="", size=72)), {"hidden": 72}),
    "layer norms without a weight": Odd(layer_normed(False, True), {"hidden": 72}),
    "layer norms without a bias": Odd(layer_normed(True, False), {"hidden": 72}),
    "layer norms with neither": Odd(layer_normed(False, False), {"hidden": 72}),
    "norms of heads without a weight": Odd(normed_heads),
    "factors of outputs": Odd(each(Linear, scaled)),
    "products of values": Odd(gated),
}


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(families, "added", {})
    layout.cache_clear()
    yield
    layout.cache_clear()


class Checkpoint:
    """A checkpoint of the family ``odd``."""

    def __init__(self, family: Odd, directory: Path) -> None:
        """Register the family and write the checkpoint."""
        families.added["odd"] = family
        shape = {name: size for name, size in family.shape.items() if name != "v_head_dim"}
        v = family.shape.get("v_head_dim", 0)
        extra = {"architectures": ["OddForCausalLM"], "model_type": "odd", **({"v_head_dim": v} if v else {})}
        sizes = tiny_model.Shape(**shape, extra=extra)
        self.path = tiny_model.write(directory, sizes)
        if v:
            self._widen(sizes, v)

    def _widen(self, sizes: tiny_model.Shape, v: int) -> None:
        """Give the checkpoint heads of v of another size."""
        from safetensors.numpy import load_file, save_file

        weights = load_file(self.path / "model.safetensors")
        random = np.random.default_rng(7)
        for layer in range(sizes.layers):
            name = f"model.layers.{layer}.self_attn"
            for part, rows, columns in (
                ("v_proj", sizes.kv_heads * v, sizes.hidden),
                ("o_proj", sizes.hidden, sizes.heads * v),
            ):
                values = random.standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
                weights[f"{name}.{part}.weight"] = values
        save_file(weights, self.path / "model.safetensors", metadata={"format": "pt"})

    def run(self, implementation: str, **more: object) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """Return the logits of all rows of the prompt, in three chunks, and greedy tokens."""
        settings = {**harness.F32, **harness.IMPLEMENTATIONS[implementation], "kv_cache.memory": "4MB", **more}
        with harness.engine(self.path, settings) as engine:
            logits = harness.logits(engine, PROMPT, range(len(PROMPT)), chunks=3)
            return logits, engine.generate([PROMPT], GREEDY)[0].token_ids


@pytest.mark.parametrize("case", CASES)
def test_reference_and_vector_kernels_give_the_same_bytes_and_numpy_the_same_tokens(case: str, tmp_path: Path) -> None:
    made = Checkpoint(CASES[case], tmp_path / "model")
    logits, tokens = made.run("reference")
    vector = made.run(VECTOR)
    assert vector[0].tobytes() == logits.tobytes() and vector[1] == tokens
    plain = made.run("numpy")
    assert plain[1] == tokens
    np.testing.assert_allclose(plain[0], logits, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(logits).max())))


@pytest.mark.parametrize("case", ["alibi", "v of larger heads", "norms without a weight", "factors of outputs"])
def test_integers_give_the_same_bytes_by_every_kernel(case: str, tmp_path: Path) -> None:
    made = Checkpoint(CASES[case], tmp_path / "model")
    stored = {"model.format": "int8-row", "kv_cache.dtype": "int8h"}
    found = [made.run(implementation, **stored) for implementation in ("reference", VECTOR)]
    assert found[0][0].tobytes() == found[1][0].tobytes() and found[0][1] == found[1][1]


@pytest.mark.parametrize("case", ["v of larger heads", "v of smaller heads", "v of heads of 64 by alibi"])
@pytest.mark.parametrize(
    "kv", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in ("f16", "k8v4hi"))) for name in CACHES]
)
def test_every_cache_holds_heads_of_v_of_another_size(kv: str, case: str, tmp_path: Path) -> None:
    """NumPy stores the same codes; where one number is rounded the other way, its row departs, so most rows count."""
    made, stored = Checkpoint(CASES[case], tmp_path / "model"), {"kv_cache.dtype": kv, "kv_cache.memory": "1MB"}
    logits, tokens = made.run("reference", **stored)
    vector = made.run(VECTOR, **stored)
    assert vector[0].tobytes() == logits.tobytes() and vector[1] == tokens
    departures = np.abs(made.run("numpy", **stored)[0] - logits).max(axis=1)
    assert np.median(departures) < 2e-5 * np.abs(logits).max()


@pytest.mark.parametrize("case", ["norms without a weight", "layer norms with neither"])
def test_the_last_norm_of_all_rows_has_no_weight_either(case: str, tmp_path: Path) -> None:
    made = Checkpoint(CASES[case], tmp_path / "model")
    found = []
    for implementation in ("reference", VECTOR):
        with harness.engine(made.path, {**harness.F32, **harness.IMPLEMENTATIONS[implementation]}) as engine:
            found.append(engine.embed([PROMPT])[0])
    assert found[0].shape == (72,) and found[0].tobytes() == found[1].tobytes()
    assert abs(float(np.linalg.norm(found[0])) - 1) < 1e-5, "an embedding has length 1"


@pytest.mark.parametrize("case", [name for name in CASES if name != "nothing"])
def test_each_case_differs_from_a_llama(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a case has is not idle: with the plain graph, or with plain heads, logits are others."""
    family = CASES[case]
    made = Checkpoint(family, tmp_path / "model")
    logits, _ = made.run(VECTOR)
    if family.graph is decoder_graph:
        assert logits.shape == (len(PROMPT), tiny_model.VOCAB)
        other, _ = Checkpoint(Odd(), tmp_path / "other").run(VECTOR)
    else:
        families.added["odd"] = replace(family, graph=decoder_graph)
        other, _ = made.run(VECTOR)
    assert np.abs(logits - other).max() > 10 * TOLERANCE


def test_results_do_not_depend_on_chunks_or_on_other_rows(tmp_path: Path) -> None:
    made = Checkpoint(CASES["v of heads of 64 by alibi"], tmp_path / "model")
    with harness.engine(made.path, {**harness.F32, "kv_cache.memory": "4MB"}) as engine:
        whole, parts = (harness.logits(engine, PROMPT, range(90), chunks=chunks) for chunks in (1, 7))
        alone = engine.generate([PROMPT], GREEDY)[0].token_ids
        beside = [one.token_ids for one in engine.generate([PROMPT[:33], PROMPT, PROMPT[:5]], GREEDY)]
    assert whole.tobytes() == parts.tobytes() and beside[1] == alone


# ------------------------------------------------------------------------------------------------------------ errors


def without_embedding(config: ModelConfig) -> Graph:
    plain = decoder_graph(config)
    return replace(plain, ops=plain.ops[1:], inputs=("hidden",))


def other_op(config: ModelConfig) -> Graph:
    plain = decoder_graph(config)
    values = {**plain.values, "other": Value(64)}
    return replace(plain, values=values, ops=(plain.ops[0], RowOp("groupnorm", "hidden", "other"), *plain.ops[1:]))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (without_embedding, "its graph takes hidden from its caller, and an engine writes no values"),
        (each(Attention, lambda op: replace(op, slopes=(0.5,))), "slopes has 1 values, the op needs 4"),
        (each(Attention, lambda op: replace(op, v_head_dim=32)), "the cache has 2 heads of 16"),
        (each(Linear, lambda op: replace(op, steps=(RowScale("nothing"),))), "names 'nothing'"),
        (each(Linear, lambda op: replace(op, steps=(RowScale("norm"),))), "scale has 64 values, the op needs 128"),
        (each(Linear, lambda op: replace(op, steps=(Mul("nothing"),))), "reads 'nothing' before an op writes it"),
        (each(Linear, lambda op: replace(op, steps=(Mul("hidden"),))), "has 64 columns, the op needs 128"),
        (each(Linear, lambda op: replace(op, steps=(Mul("hidden", "cube"),))), 'unknown function "cube"'),
        (each(Embed, lambda op: Apply("hidden", "hidden", (Residual("hidden"),))), "reads 'hidden' before an op"),
    ],
)
def test_a_wrong_graph_is_refused(graph: Callable[[ModelConfig], Graph], words: str, tmp_path: Path) -> None:
    made = Checkpoint(Odd(graph), tmp_path / "model")
    with pytest.raises((ModelError, KernelError), match=words):
        made.run(VECTOR)


def test_numpy_refuses_an_op_that_it_has_no_function_for_and_adapters(tmp_path: Path) -> None:
    made = Checkpoint(Odd(other_op), tmp_path / "model")
    with pytest.raises(KernelError, match="family odd: its graph has the op groupnorm, for which there is no function"):
        made.run("numpy")
    families.added["odd"] = Odd()
    with harness.engine(made.path, {**harness.F32, **harness.IMPLEMENTATIONS["numpy"]}) as engine:
        packed = type("Packed", (), {"source": "poet"})
        with pytest.raises(AdapterError, match="applies none to family odd"):
            engine.executable.load_adapter(packed)  # type: ignore[arg-type]
