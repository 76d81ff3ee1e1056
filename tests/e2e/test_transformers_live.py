"""Random shapes against transformers itself, which runs in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import goldens
import numpy as np
import pytest
from e2e import harness
from goldens import oracle
from goldens.shapes import GREEDY_STEPS, random_case

from infeng_core import SamplingParams

pytestmark = pytest.mark.slow

SCRIPT = Path(goldens.__path__[0]) / "transformers_run.py"


@pytest.mark.parametrize("seed", range(1, 13))
def test_a_random_shape_computes_what_transformers_computes(seed: int, torch_python: Path, tmp_path: Path) -> None:
    case = random_case(seed)
    directory = case.write(tmp_path / "model")
    np.save(directory / "prompt.npy", case.prompt)
    np.save(directory / "positions.npy", case.positions)
    command = [torch_python, SCRIPT, directory, tmp_path / "out.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as file:
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
