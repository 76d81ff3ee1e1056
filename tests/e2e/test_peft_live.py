"""Random adapters on random shapes against PEFT itself, which runs in an environment of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goldens
import numpy as np
import pytest
from e2e import harness
from goldens import environment, oracle
from goldens.adapted import ALL_LINEARS, STEPS
from goldens.shapes import Case, random_case

from infeng_core import SamplingParams
from infeng_core.requests.request import Request

SCRIPT = Path(goldens.__path__[0]) / "peft_run.py"
BLOCKS = {range(1, 6): pytest.mark.slow, range(6, 17): pytest.mark.nightly}  # seeds that one process computes
SEEDS = [pytest.param(block, seed, marks=mark, id=str(seed)) for block, mark in BLOCKS.items() for seed in block]
GREEDY = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)
NORMS = ("norm", "input_layernorm", "post_attention_layernorm")


def random_lora(case: Case, *, is_plain: bool) -> dict[str, Any]:
    """Draw arguments of LoraConfig; a plain one can be combined with another one."""
    seed, tied = case.seed, case.config["tie_word_embeddings"]
    random = np.random.RandomState(1000 * seed + is_plain)

    def some(names: list[str], share: float) -> list[str]:
        return [name for name in names if random.uniform() < share]

    ends = some(["embed_tokens", "lm_head"], 0.3)
    targets = some(ALL_LINEARS, 0.5) or ["up_proj"]
    lora: dict[str, Any] = {
        "r": int(random.choice([1, 2, 5, 8, 16, 20])),
        "lora_alpha": int(random.randint(1, 40)),
        "target_modules": targets + ([] if is_plain else ends),
        "use_rslora": bool(random.randint(2)),
        "rank_pattern": {targets[0]: int(random.randint(1, 20))} if random.randint(2) else {},
        "alpha_pattern": {targets[-1]: int(random.randint(1, 20))} if random.randint(2) else {},
    }
    if is_plain:
        return lora
    saved = some([*NORMS, *([] if tied or ends else ["embed_tokens", "lm_head"])], 0.3)
    kind = random.randint(3)
    # Two of the first tokens of prompts, so that their rows are read.
    tokens = sorted({prompt[0] for prompt in prompts(case)})[:2] if random.randint(2) else None
    return lora | {
        "trainable_token_indices": None if ends or "embed_tokens" in saved else tokens,
        "use_dora": bool(kind == 1 and "embed_tokens" not in ends),
        "lora_bias": bool(kind == 2 and "embed_tokens" not in ends),
        "bias": ["none", "all", "lora_only"][random.randint(3)] if kind == 0 else "none",
        "modules_to_save": saved or None,
    }


def weights(first: dict[str, Any]) -> tuple[float, float] | None:
    """Return with which weights the plain adapter and this one can be combined, if they can."""
    replaces = first["modules_to_save"] or first["trainable_token_indices"]
    if first["bias"] != "none" or first["lora_bias"] or replaces:
        return None
    return 0.75, 1.0 if first["use_dora"] else -0.5


@pytest.fixture(scope="module")
def computed(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[range], Path]:
    """Return a function that computes a block of seeds once and returns the folder of everything, by seeds."""
    return functools.cache(lambda block: compute(block, torch_python, tmp_path_factory.mktemp("peft")))


def compute(block: range, torch_python: Path, root: Path) -> Path:
    """Make every adapter of the seeds and let PEFT run it, all in one process."""
    jobs: list[dict[str, Any]] = []
    for seed in block:
        case, here = random_case(seed), root / str(seed)
        first = random_lora(case, is_plain=False)
        model = str(case.write(here / "model"))
        run = {"model": model, "prompts": prompts(case)}
        for name, lora in (("first", first), ("plain", random_lora(case, is_plain=True))):
            jobs.append({"make": str(here / name), "model": model, "lora": lora, "seed": seed})
            jobs.append({"run": str(here / f"{name}.npz"), "adapters": [[str(here / name), 1.0]], **run})
        if both := weights(first):
            adapters = [[str(here / name), weight] for name, weight in zip(("plain", "first"), both, strict=True)]
            jobs.append({"run": str(here / "both.npz"), "adapters": adapters, **run})
    (root / "jobs.json").write_text(json.dumps(jobs))
    environment.run(torch_python, SCRIPT, root / "jobs.json")
    return root


def prompts(case: Case) -> list[list[int]]:
    return [case.prompt[:29].tolist(), case.prompt[11:20].tolist()]


@pytest.mark.parametrize(("block", "seed"), SEEDS)
def test_random_adapters_equal_peft_within_tolerance(
    block: range, seed: int, computed: Callable[[range], Path]
) -> None:
    case, here = random_case(seed), computed(block) / str(seed)
    uses: dict[str, tuple[tuple[str, float], ...]] = {"first": (("first", 1.0),), "plain": (("plain", 1.0),)}
    if both := weights(random_lora(case, is_plain=False)):
        uses["both"] = tuple(zip(("plain", "first"), both, strict=True))
    expected = {}
    for name in uses:
        with np.load(here / f"{name}.npz") as file:
            expected[name] = dict(file)
    directories = {name: here / name for name in ("first", "plain")}
    for implementation, settings in harness.IMPLEMENTATIONS.items():
        if harness.missing(implementation):
            continue
        with harness.engine(here / "model", harness.F32, settings, threads=2, adapters=directories) as engine:
            for name, use in uses.items():
                adapters = harness.applied(engine, [(directories[each], weight) for each, weight in use])
                for prompt, logits in zip(prompts(case), expected[name]["logits"], strict=True):
                    positions = [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]
                    found = harness.logits(engine, prompt, positions, adapters=adapters)
                    message = f"{implementation}, {name}"
                    np.testing.assert_allclose(found, logits, rtol=0, atol=tolerance(logits), err_msg=message)
            done = engine.generate(
                [Request(tuple(prompt), GREEDY, adapter=use) for use in uses.values() for prompt in prompts(case)]
            )
        wanted = np.concatenate([expected[name]["greedy"] for name in uses])
        leads = np.concatenate([expected[name]["lead"] for name in uses])
        for completion, greedy, lead in zip(done, wanted, leads, strict=True):
            # Where two tokens are nearly tied, rounding may choose either, and the texts part there.
            sure = lead > 3 * tolerance(expected["first"]["logits"])
            steps = len(sure) if sure.all() else int(sure.argmin())
            assert list(completion.token_ids[:steps]) == greedy[:steps].tolist(), implementation


def tolerance(logits: np.ndarray) -> float:
    """Return the tolerance for logits of a standard deviation of 2.5, and more for larger ones."""
    assert logits.std() >= 1
    return oracle.TOLERANCE * max(1.0, float(logits.std()) / 2.5)
