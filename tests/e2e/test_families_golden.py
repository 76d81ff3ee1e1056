"""Every family, in f32, against what transformers computed of it; and no term of a family that could be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from goldens import oracle
from goldens.families import FAMILY_CASES, GEMMA2, OLMO2, FamilyCase
from goldens.shapes import GREEDY_STEPS

from infeng_core import Engine, SamplingParams
from infeng_core.models.families import families
from infeng_core.models.ops import (
    Activate,
    Apply,
    Attention,
    Bias,
    Combine,
    ExpertLinear,
    GatedMul,
    Graph,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Route,
    Scale,
    SiluMul,
    Softcap,
)

GREEDY = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, ignore_eos=True)
LATER = [pytest.param("numpy", marks=pytest.mark.slow), pytest.param("reference", marks=pytest.mark.nightly)]
MARGIN = 10  # times the tolerance

# Variants of a case that the fast tests have.
VARIANTS = {"yarn-mscale", "qwen3-window", "ministral", "phi3", "phi4-short", "qwen3-moe-shares", "olmoe", "mixtral"}
VARIANTS |= {"gpt-oss-plain"}
CASES = [pytest.param(each, marks=pytest.mark.slow) if each.name in VARIANTS else each for each in FAMILY_CASES]

case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the Hugging Face directory of each case by its name."""
    root = tmp_path_factory.mktemp("families")
    return {each.name: each.write(root / each.name) for each in FAMILY_CASES}


@pytest.mark.parametrize("implementation", [VECTOR, *LATER])
@case
def test_logits_and_greedy_tokens_equal_transformers(
    implementation: str, case: FamilyCase, directories: dict[str, Path]
) -> None:
    if reason := harness.missing(implementation):
        pytest.skip(reason)
    golden = oracle.golden(case)
    with harness.engine(directories[case.name], settings(case, implementation)) as engine:
        assert case.context in (0, engine.limits.context)
        bound = engine.executable.bound()
        assert harness.libraries(bound, {line.op for line in bound}) == {implementation}
        logits = harness.logits(engine, golden["prompt"], golden["positions"], chunks=3)
        [completion] = engine.generate([golden["prompt"].tolist()], GREEDY)
    assert logits.std() >= 1
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE)
    assert list(completion.token_ids) == golden["greedy"].tolist()


@pytest.mark.slow
@case
def test_over_integer_weights_every_kernel_gives_the_bytes_of_the_reference(
    case: FamilyCase, directories: dict[str, Path]
) -> None:
    found = []
    for implementation in (VECTOR, "reference"):
        stored = {"model.format": "int8-row", "kv_cache.dtype": "int8", "adapters.dtype": "int8"}
        more = {**settings(case, implementation), **stored, "kv_cache.memory": "1MB"}
        with harness.engine(directories[case.name], more) as engine:
            found.append(harness.logits(engine, case.prompt, range(0, len(case.prompt), 5), chunks=2))
    np.testing.assert_array_equal(found[0], found[1])
    [first, *_] = oracle.golden(case)["logits"]
    assert np.corrcoef(found[0][0], first)[0, 1] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("case", [GEMMA2, OLMO2], ids=lambda case: case.name)
def test_prompt_embeddings_use_the_last_norm_of_the_family(case: FamilyCase, directories: dict[str, Path]) -> None:
    found = []
    for implementation in (VECTOR, "numpy"):
        with harness.engine(directories[case.name], settings(case, implementation)) as engine:
            found += engine.embed([case.prompt[:50].tolist()], normalize=False)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)


def _steps(op: Op, keep: Callable[[object], bool]) -> Op:
    return replace(op, steps=tuple(filter(keep, op.steps))) if isinstance(op, Linear | Apply | Combine) else op


def _rope(op: Op, **changes: object) -> Op:
    return replace(op, rope=replace(op.rope, **changes)) if isinstance(op, Rope) else op  # type: ignore[arg-type]


def _attention(op: Op, **changes: object) -> Op:
    return replace(op, **changes) if isinstance(op, Attention) else op  # type: ignore[arg-type]


def _silu(op: Op) -> Op:
    if not isinstance(op, Linear):
        return op
    return replace(op, steps=tuple(SiluMul() if isinstance(step, GatedMul) else step for step in op.steps))


def _activated(op: Op, function: str) -> Op:
    if not isinstance(op, Linear):
        return op
    return replace(op, steps=tuple(Activate(function) if isinstance(s, Activate) else s for s in op.steps))


def _gelu_of_experts(op: Op) -> Op:
    if isinstance(op, ExpertLinear) and any(isinstance(step, SiluMul | GatedMul) for step in op.steps):
        return replace(op, steps=(GatedMul("gelu_tanh"),))
    return op


def _swiglu(op: Op, **changes: float) -> Op:
    if not isinstance(op, ExpertLinear):
        return op
    steps = (
        replace(step, **changes) if isinstance(step, GatedMul) and step.function == "swiglu" else step
        for step in op.steps
    )
    return replace(op, steps=tuple(steps))


def _unbiased(op: Op, weights: tuple[str, ...]) -> Op:
    if not isinstance(op, Linear | ExpertLinear) or not op.weight.endswith(weights):
        return op
    return replace(op, steps=tuple(step for step in op.steps if not isinstance(step, Bias)))


def _without(op: Op, values: str) -> Op | None:
    """Leave out what makes and what adds the values of a shared expert whose names begin so."""
    if isinstance(op, Combine):
        return replace(op, shared="" if op.shared.startswith(values) else op.shared, gate="")
    return None if isinstance(op, Linear) and op.out.startswith(values) else op


CHANGES: dict[str, Callable[[Op], Op | None]] = {
    "no window": lambda op: _attention(op, window=0),
    "a window of one more": lambda op: (
        replace(op, window=op.window + 1) if isinstance(op, Attention) and op.window else op
    ),
    "scores not capped": lambda op: _attention(op, softcap=0.0),
    "sinks left out": lambda op: _attention(op, sinks=""),
    "sinks of the first layer": lambda op: (
        replace(op, sinks="layers.0.sinks") if isinstance(op, Attention) and op.sinks else op
    ),
    "scores scaled otherwise": lambda op: replace(op, scale=op.scale * 1.05) if isinstance(op, Attention) else op,
    "q not normed": lambda op: replace(op, q_norm="") if isinstance(op, Rope) else op,
    "k not normed": lambda op: replace(op, k_norm="") if isinstance(op, Rope) else op,
    "heads of q and k not normed": lambda op: None if isinstance(op, RmsNorm) and op.heads else op,
    "norms that keep the mean": lambda op: (
        RmsNorm(op.weight, op.x, op.out, op.eps) if isinstance(op, LayerNorm) else op
    ),
    "norms with another bias": lambda op: replace(op, bias="norm.bias") if isinstance(op, LayerNorm) else op,
    "norms of another epsilon": lambda op: replace(op, eps=op.eps / 10) if isinstance(op, LayerNorm) else op,
    "silu for the gelu of an MLP without a gate": lambda op: _activated(op, "silu"),
    "biases before the gelu left out": lambda op: _unbiased(op, (".up_proj",)),
    "biases behind the MLP left out": lambda op: _unbiased(op, (".down_proj",)) if isinstance(op, Linear) else op,
    "norms without 1": lambda op: replace(op, offset=0.0) if isinstance(op, RmsNorm | Rope) else op,
    "heads normed without 1": lambda op: replace(op, offset=0.0) if isinstance(op, Rope) else op,
    "norms behind blocks left out": lambda op: (
        Apply(op.x, op.out, ()) if isinstance(op, RmsNorm) and op.weight.endswith("_post_norm") else op
    ),
    "rope not scaled": lambda op: _rope(op, kind="default"),
    "rope scaled by half": lambda op: _rope(op, factor=op.rope.factor / 2) if isinstance(op, Rope) else op,
    "short factors": lambda op: _rope(op, long_factors=op.rope.short_factors) if isinstance(op, Rope) else op,
    "long factors": lambda op: _rope(op, short_factors=op.rope.long_factors) if isinstance(op, Rope) else op,
    "no attention factor": lambda op: _rope(op, attention_factor=1.0),
    "ramp not truncated, or truncated": lambda op: _rope(op, truncate=isinstance(op, Rope) and not op.rope.truncate),
    "whole heads rotated": lambda op: _rope(op, partial=1.0, kind="default"),
    "q not scaled": lambda op: _rope(op, query_beta=0.0),
    "factors left out": lambda op: _steps(op, lambda step: not isinstance(step, Scale)),
    "caps of logits left out": lambda op: _steps(op, lambda step: not isinstance(step, Softcap)),
    "silu for gelu": _silu,
    "gelu for the silu of experts": _gelu_of_experts,
    "gates without an end": lambda op: _swiglu(op, limit=1e6),
    "gates of another slope": lambda op: _swiglu(op, slope=1.0),
    "biases of q, k, v left out": lambda op: _unbiased(op, (".qkv_proj",)),
    "biases behind attention left out": lambda op: _unbiased(op, (".o_proj",)),
    "the router's bias left out": lambda op: _unbiased(op, (".router",)),
    "biases of experts' gates left out": lambda op: _unbiased(op, (".experts.gate_up_proj",)),
    "biases of experts' results left out": lambda op: _unbiased(op, (".experts.down_proj",)),
    "the shared expert left out": lambda op: _without(op, "shared"),
    "the shared expert without its gate": lambda op: _without(op, "shared_gate"),
    "experts share otherwise": lambda op: (
        replace(op, share_of_chosen=not op.share_of_chosen) if isinstance(op, Route) else op
    ),
    "the experts that score least": lambda op: (
        replace(op, steps=(Scale(-1.0),)) if isinstance(op, Linear) and op.weight.endswith(".router") else op
    ),
}


def mutants(engine: Engine, graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph with one term wrong in all of its layers."""
    for name, change in CHANGES.items():
        yield name, replace(graph, ops=tuple(op for op in map(change, graph.ops) if op is not None))
    ropes = [op.rope for op in graph.ops if isinstance(op, Rope)]
    for rope in dict.fromkeys(ropes):
        yield "one rope for all layers", replace(graph, ops=tuple(_rope(op, **vars(rope)) for op in graph.ops))
    config = engine.model.config
    make = families()[config.family].graph
    yield "all layers rotated", make(replace(config, unrotated=()))


def matters(name: str, graph: Graph) -> bool:
    """Return whether a change is one of what is computed: some parameters belong to other kinds of rope."""
    kinds = {op.rope.kind for op in graph.ops if isinstance(op, Rope)}
    only = {"rope scaled by half": {"linear", "dynamic", "yarn"}, "ramp not truncated, or truncated": {"yarn"}}
    return bool(kinds & only.get(name, kinds))


@pytest.mark.slow
@case
def test_removing_any_term_of_a_family_changes_logits(
    case: FamilyCase, directories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = oracle.golden(case)
    more = {**settings(case, VECTOR), "kernels.order": [VECTOR, "reference"], "adapters.max_resident": 0}
    with harness.engine(directories[case.name], more, rows=320) as engine:
        right = families()[engine.model.config.family].graph(engine.model.config)
        survivors, seen = [], 0
        for name, graph in list(mutants(engine, right)):
            if graph == right or not matters(name, right):
                continue
            if name == {"phi4": "long factors", "phi4-short": "short factors"}.get(case.name):
                continue  # the table that is not used
            seen += 1
            if not harness.runs_graph(engine, graph, monkeypatch):
                continue
            logits = harness.logits(engine, golden["prompt"], golden["positions"])
            if not np.abs(logits - golden["logits"]).max() > MARGIN * oracle.TOLERANCE:
                survivors.append(name)
    assert survivors == []
    assert seen >= 2
