"""Random shapes against transformers itself, which runs in an environment of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import goldens
import numpy as np
import pytest
from e2e import harness
from goldens import environment, oracle
from goldens.families import FAMILY_CASES, GEMMA3, MINISTRAL3, OLMO3, PHI4, FamilyCase
from goldens.shapes import GREEDY_STEPS, random_case, word_tokenizer

from infeng_core import SamplingParams

SCRIPT = Path(goldens.__path__[0]) / "transformers_run.py"

BLOCKS = {range(1, 5): pytest.mark.slow, range(5, 13): pytest.mark.nightly}  # seeds that one process computes
SEEDS = [pytest.param(block, seed, marks=mark, id=str(seed)) for block, mark in BLOCKS.items() for seed in block]


@pytest.fixture(scope="module")
def computed(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[range], Path]:
    """Return a function that lets transformers run a block of seeds and returns the folder of their models."""

    @functools.cache
    def compute(block: range) -> Path:
        root = tmp_path_factory.mktemp("models")
        for seed in block:
            case = random_case(seed)
            directory = case.write(root / str(seed))
            np.save(directory / "prompt.npy", case.prompt)
            np.save(directory / "positions.npy", case.positions)
        environment.run(torch_python, SCRIPT, *(root / str(seed) for seed in block))
        return root

    return compute


@pytest.mark.parametrize(("block", "seed"), SEEDS)
def test_random_shapes_equal_transformers_within_tolerance(
    block: range, seed: int, computed: Callable[[range], Path]
) -> None:
    case, directory = random_case(seed), computed(block) / str(seed)
    with np.load(directory / "golden.npz") as file:
        golden = dict(file)
    assert golden["logits"].std() >= 1
    params = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, ignore_eos=True)
    for name, settings in harness.IMPLEMENTATIONS.items():
        if harness.missing(name):
            continue
        with harness.engine(directory, harness.F32, settings, threads=2) as engine:
            logits = harness.logits(engine, case.prompt, case.positions, chunks=2)
            [completion] = engine.generate([case.prompt.tolist()], params)
        np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE, err_msg=name)
        # Where two tokens are nearly tied, rounding may choose either, and the texts part there.
        sure = golden["lead"] > 2 * oracle.TOLERANCE
        steps = len(sure) if sure.all() else int(sure.argmin())
        assert list(completion.token_ids[:steps]) == golden["greedy"][:steps].tolist(), name


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param((PHI4, OLMO3, GEMMA3, MINISTRAL3), marks=pytest.mark.slow, id="four"),
        pytest.param(FAMILY_CASES, marks=pytest.mark.nightly, id="all"),
    ],
)
def test_golden_files_of_families_equal_the_installed_transformers(
    cases: tuple[FamilyCase, ...], torch_python: Path, tmp_path: Path
) -> None:
    for case in cases:
        directory = case.write(tmp_path / case.name)
        np.save(directory / "prompt.npy", case.prompt)
        np.save(directory / "positions.npy", case.positions)
        if case.at_full_length:
            np.save(directory / "context.npy", case.context)
    environment.run(torch_python, SCRIPT, *(tmp_path / case.name for case in cases))
    for case in cases:
        golden = oracle.golden(case)
        with np.load(tmp_path / case.name / "golden.npz") as file:
            np.testing.assert_allclose(file["logits"], golden["logits"], rtol=0, atol=oracle.TOLERANCE)
            assert file["greedy"].tolist() == golden["greedy"].tolist()
        assert golden["prompt"].tolist() == case.prompt.tolist()


@pytest.mark.slow
def test_models_saved_by_the_installed_transformers_compute_the_same(torch_python: Path, tmp_path: Path) -> None:
    environment.run(torch_python, SCRIPT.with_name("saved_run.py"), tmp_path)
    made = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    assert len(made) == 10
    for directory in made:
        (directory / "tokenizer.json").write_text(json.dumps(word_tokenizer(300)))
        with np.load(directory / "golden.npz") as file:
            prompt, expected = file["prompt"], file["logits"]
        more = {**harness.IMPLEMENTATIONS[harness.VECTOR], "kv_cache.memory": "4MB", "model.context": 512}
        with harness.engine(directory, harness.F32, more) as engine:
            logits = harness.logits(engine, prompt, range(len(prompt)), chunks=2)
        tolerance = oracle.TOLERANCE * max(1.0, float(expected.std()) / 2.5)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance, err_msg=directory.name)
