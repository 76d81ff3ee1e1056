"""Models that compressed-tensors quantized, against transformers, which runs what the library reads of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import goldens
import numpy as np
import pytest
import tiny_model
from e2e import harness
from goldens import environment, oracle
from quantized_parts import SHAPE

SCRIPT = Path(goldens.__path__[0]) / "compressed_run.py"
SCHEMES: dict[str, dict[str, Any]] = {
    "int4-g64": {"num_bits": 4, "strategy": "group", "group_size": 64},
    "int8-row": {"num_bits": 8, "strategy": "channel"},
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of quantized models and their logits."""
    root = tmp_path_factory.mktemp("compressed")
    for name, weights in SCHEMES.items():
        directory = tiny_model.write(root / name, SHAPE)
        (directory / "scheme.json").write_text(json.dumps({"format": "pack-quantized", "weights": weights}))
        np.save(directory / "prompt.npy", np.arange(2, 60, dtype=np.int32))
    environment.run(torch_python, SCRIPT, *(root / name for name in SCHEMES))
    return root


@pytest.mark.parametrize("name", SCHEMES)
def test_a_quantized_model_equals_transformers_within_tolerance(models: Path, name: str) -> None:
    directory = models / name
    prompt = np.load(directory / "prompt.npy")
    with np.load(directory / "golden.npz") as file:
        golden = file["logits"]
    assert golden.std() >= 1
    positions = np.arange(len(prompt))
    with harness.engine(directory, harness.F32, {}, threads=2) as engine:
        logits = harness.logits(engine, prompt, positions, chunks=2)
    np.testing.assert_allclose(logits, golden, rtol=0, atol=oracle.TOLERANCE)
    with harness.engine(directory, {"kv_cache.dtype": "f32"}, {}, threads=2) as engine:
        assert engine.model.formats_used["layers.0.qkv_proj"] == name
        near = harness.logits(engine, prompt, positions, chunks=2)
    assert np.abs(near - golden).mean() < 0.04 * golden.std()  # activations, embedding and head in int8
