"""Experts on a processor and a GPU together give the bytes of either alone, wherever each expert is in each step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import expert_deltas
import numpy as np
import pytest
from e2e import harness
from expert_deltas import Deltas
from goldens.families import FAMILY_CASES, FamilyCase

from infeng_core import Engine, SamplingParams
from infeng_core.backends.native.executable import NativeExecutable
from infeng_core.errors import AdapterError, UsageError

MIXTURES = [case for case in FAMILY_CASES if case.experts]
QUICK = "gpt-oss"
"""A family whose experts have biases; the others run every night."""


def case_of(name: str) -> FamilyCase:
    return next(case for case in MIXTURES if case.name == name)


CASES = [
    pytest.param(case_of(QUICK), 3, id="few"),
    pytest.param(case_of(QUICK), 20, marks=pytest.mark.slow, id=QUICK),
    *(pytest.param(one, 20, marks=pytest.mark.nightly, id=one.name) for one in MIXTURES if one.name != QUICK),
]
SAMPLED = SamplingParams(temperature=0.8, seed=5, max_tokens=8, ignore_eos=True)


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    return case_of(QUICK).write(tmp_path / "model")


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[Path, Deltas]:
    """Return a mixture, and adapters of it."""
    case = case_of("qwen3-moe")
    return case.write(tmp_path / "model"), Deltas(case, seed=1)


def gpu(device: str, experts: str) -> dict[str, Any]:
    return {"backend.use": "cuda", "cuda.device": device, "cuda.experts": experts}


@contextlib.contextmanager
def split(directory: Path, device: str, experts: str, **more: Any) -> Iterator[Engine]:
    """Return an engine whose experts are on two sides."""
    settings = {**gpu(device, experts), **more}
    with harness.engine(directory, {"kv_cache.memory": "4MB"}, settings) as engine:
        yield engine


def chosen(engine: Engine) -> tuple[int, int]:
    """Return how many experts the GPU and the processor have computed."""
    executable = engine.executable
    assert isinstance(executable, NativeExecutable)
    return executable.experts_chosen(on_device=True), executable.experts_chosen(on_device=False)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "seeds"), CASES)
def test_logits_are_equal_under_placements_that_change_in_each_step(
    case: FamilyCase, seeds: int, device: str, tmp_path: Path
) -> None:
    directory, prompt = case.write(tmp_path / "model"), np.asarray(case.prompt[:24], np.int32)
    usual = {"kv_cache.memory": "4MB", **({"model.context": case.context} if case.context else {})}

    def logits(settings: dict[str, Any]) -> tuple[bytes, tuple[int, int]]:
        with harness.engine(directory, usual, settings) as engine:
            return harness.logits(engine, prompt, range(0, len(prompt), 5), chunks=6).tobytes(), chosen(engine)

    expected, _ = logits({"backend.use": "native"})
    places = set()
    for seed in range(seeds):  # half of the time with room for some experts alone, so that copies replace each other
        room = {"cuda.experts_mb": 0.1} if seed % 2 else {}
        found, sides = logits({**gpu(device, f"random:{seed * 1000}"), **room})
        assert found == expected and min(sides) > 0
        places.add(sides)
    assert len(places) > 1
    assert logits(gpu(device, "cpu"))[0] == expected
    assert logits(gpu(device, "auto"))[0] == expected


@pytest.mark.parametrize(
    "format",
    ["int4-p32-arow-h256", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("int4-g64", "int8-row", "bf16"))],
)
def test_tokens_of_a_batch_are_equal_in_every_weight_format(mixture: Path, device: str, format: str) -> None:
    prompts = [[1, 2, 3, 4], [7] * 9, [5, 6]]
    with harness.engine(mixture, {"model.format": format}, {"backend.use": "native"}) as engine:
        expected = [output.token_ids for output in engine.generate(prompts, SAMPLED)]
    with split(mixture, device, "random:3", **{"model.format": format}) as engine:
        found = [output.token_ids for output in engine.generate(prompts, SAMPLED)]
        assert min(chosen(engine)) > 0
    assert found == expected


@pytest.mark.slow
def test_the_side_that_takes_less_time_computes_experts(mixture: Path, device: str) -> None:
    for slow, idle in (("host_gmacs", 1), ("gpu_gmacs", 0)):
        with split(mixture, device, "auto", **{f"cuda.{slow}": 0.001}) as engine:
            engine.generate([[1, 2, 3, 4]], SAMPLED)
            assert chosen(engine)[idle] == 0 and chosen(engine)[1 - idle] > 0


def test_the_processor_computes_all_experts_where_the_gpu_has_no_room(mixture: Path, device: str) -> None:
    with split(mixture, device, "auto", **{"cuda.experts_mb": 0.001, "cuda.host_gmacs": 0.001}) as engine:
        engine.generate([[1, 2, 3, 4]], SAMPLED)
        assert chosen(engine)[0] == 0


@pytest.mark.slow
def test_a_request_is_repeated_with_equal_tokens_while_copies_of_experts_come_and_go(
    mixture: Path, device: str
) -> None:
    with split(mixture, device, "random:1", **{"cuda.experts_mb": 0.1}) as engine:
        alone = engine.generate([[1, 2, 3]], SAMPLED)[0].token_ids
        for _ in range(3):
            assert engine.generate([[4, 5, 6], [1, 2, 3]], SAMPLED)[1].token_ids == alone


def test_kernels_of_both_sides_are_listed(mixture: Path, device: str) -> None:
    with split(mixture, device, "auto") as engine:
        linears = {op.library for op in engine.executable.bound() if op.op == "linear"}
    assert len(linears) > 1 and any(not name.startswith("cuda") for name in linears)


@pytest.mark.slow
def test_adapters_of_attention_act_in_a_mixed_batch(adapted: tuple[Path, Deltas], device: str, tmp_path: Path) -> None:
    directory, deltas = adapted
    path = expert_deltas.write(tmp_path / "attention", deltas.of_attention())
    found = []
    for settings in ({"backend.use": "native"}, gpu(device, "random:7")):
        with harness.engine(directory, {"kv_cache.memory": "4MB"}, settings) as engine:
            engine.adapters.load("one", path)
            outputs = engine.generate([[1, 2, 3], [1, 2, 3]], SAMPLED, adapters=["one", None])
            found.append([output.token_ids for output in outputs])
    assert found[0] == found[1] and found[0][0] != found[0][1]


def test_an_adapter_that_changes_experts_is_refused_by_name(
    adapted: tuple[Path, Deltas], device: str, tmp_path: Path
) -> None:
    directory, deltas = adapted
    modules = ["q_proj", "gate_proj", "up_proj", "down_proj"]
    path = expert_deltas.write(
        tmp_path / "experts", deltas.modules(), target_modules=modules, exclude_modules=expert_deltas.DENSE
    )
    with split(directory, device, "auto") as engine, pytest.raises(AdapterError, match=r"cuda\.experts: gpu"):
        engine.adapters.load("one", path, pin=True)


@pytest.mark.parametrize("experts", ["fast", "cpu:3", "random:", "random:x"])
def test_an_unknown_place_for_experts_is_named(mixture: Path, experts: str) -> None:
    with pytest.raises(UsageError, match=r"cuda\.experts: "), split(mixture, "emulated", experts):
        pass
