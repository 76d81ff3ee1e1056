"""Activated adapters (aLoRA), in f32, against what PEFT computed, beside all other adapters of a base and the base."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import goldens
import numpy as np
import pytest
from e2e import harness
from engine_parts import Recorder
from goldens import environment, oracle
from goldens.adapted import ACTIVATED, ADAPTED, ALL_LINEARS, STEPS, Adapted
from goldens.shapes import random_case
from numpy.typing import NDArray

from infeng_core import Engine, SamplingParams
from infeng_core.requests.request import Request

SCRIPT = Path(goldens.__path__[0]) / "peft_run.py"
TOLD = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, prompt_logprobs=0)
SEEDS = range(40, 44)
TOLERANCE = oracle.TOLERANCE / 2  # 1e-4, with logits of a standard deviation of 2.5


def every_logit(engine: Engine, requests: Sequence[Request]) -> tuple[list[list[int]], list[NDArray[np.float32]]]:
    """Return the new tokens of requests that run together, and the logits of every row of each."""
    inner = engine.executable
    recorder = Recorder(engine)
    try:
        streams = [engine.submit(request) for request in requests]
        done = [stream.result() for stream in streams]
    finally:
        engine.executable = inner
    rows = [[np.frombuffer(row, np.float32) for row in recorder.logits[id_]] for id_ in sorted(recorder.logits)]
    return [list(one.token_ids) for one in done], [np.array(one) for one in rows]


def sampled(prompt: list[int]) -> list[int]:
    """Return the positions whose logits are stored."""
    return [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]


@pytest.mark.parametrize("rows", [7, 128])
@pytest.mark.parametrize("case", ACTIVATED, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", harness.IMPLEMENTATIONS)
def test_an_activated_adapter_equals_peft(
    implementation: str, case: Adapted, rows: int, reduced: dict[str, Path]
) -> None:
    if reason := harness.missing(implementation):
        pytest.skip(reason)
    others = [one for one in ADAPTED if one.base is case.base and not one.combines]
    names = {one.name: one.directory for one in (*others, case)}
    requests = [
        Request(tuple(prompt), TOLD, adapter=name)
        for prompt in case.prompts
        for name in (case.name, None, *(one.name for one in others))
    ]
    mine = range(0, len(requests), len(others) + 2)
    expected = case.expected()
    settings = harness.IMPLEMENTATIONS[implementation]
    with harness.engine(reduced[case.base.name], harness.F32, settings, rows=rows, adapters=names) as engine:
        tokens, logits = every_logit(engine, requests)
    for prompt, place, wanted in zip(case.prompts, mine, expected["logits"], strict=True):
        np.testing.assert_allclose(logits[place][sampled(prompt)], wanted, rtol=0, atol=TOLERANCE)
    assert [tokens[place] for place in mine] == expected["greedy"].tolist()


@pytest.mark.slow
def test_random_activated_adapters_equal_peft(torch_python: Path, tmp_path: Path) -> None:
    jobs: list[dict[str, Any]] = []
    for seed in SEEDS:
        case, here = random_case(seed), tmp_path / str(seed)
        model = str(case.write(here / "model"))
        lora, prompts = drawn(seed, case.config["vocab_size"])
        jobs.append({"make": str(here / "a"), "model": model, "lora": lora, "seed": seed})
        run = {"run": str(here / "a.npz"), "model": model, "adapters": [[str(here / "a"), 1.0]]}
        jobs.append({**run, "prompts": prompts})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    environment.run(torch_python, SCRIPT, tmp_path / "jobs.json")
    for seed in SEEDS:
        here = tmp_path / str(seed)
        _, prompts = drawn(seed, random_case(seed).config["vocab_size"])
        with np.load(here / "a.npz") as file:
            expected = dict(file)
        tolerance = TOLERANCE * max(1.0, float(expected["logits"].std()) / 2.5)
        requests = [Request(tuple(prompt), TOLD, adapter="a") for prompt in prompts]
        settings = harness.IMPLEMENTATIONS[harness.VECTOR]
        with harness.engine(here / "model", harness.F32, settings, rows=9, adapters={"a": here / "a"}) as engine:
            tokens, logits = every_logit(engine, requests)
        for prompt, found, wanted in zip(prompts, logits, expected["logits"], strict=True):
            np.testing.assert_allclose(found[sampled(prompt)], wanted, rtol=0, atol=tolerance)
        for found_tokens, greedy, lead in zip(tokens, expected["greedy"], expected["lead"], strict=True):
            sure = lead > 3 * tolerance  # where two tokens are nearly tied, rounding may choose either
            steps = len(sure) if sure.all() else int(sure.argmin())
            assert found_tokens[:steps] == greedy[:steps].tolist()


def drawn(seed: int, vocab: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Draw arguments of LoraConfig, and prompts with and without the invocation."""
    random = np.random.RandomState(seed)
    invocation = random.randint(3, vocab, random.randint(1, 5)).tolist()
    targets = [name for name in ALL_LINEARS if random.uniform() < 0.6] or ["up_proj"]
    lora = {
        "r": int(random.choice([1, 4, 8, 20])),
        "lora_alpha": int(random.randint(4, 40)),
        "use_rslora": bool(random.randint(2)),
        "target_modules": targets,
        "alora_invocation_tokens": invocation,
    }
    texts = [random.randint(3, vocab, length).tolist() for length in (23, 9, 31)]
    return lora, [
        [*texts[0], *invocation, *texts[1]],
        [*texts[1], *invocation, *texts[0], *invocation],
        [*invocation, *texts[2]],
        texts[2],
    ]
