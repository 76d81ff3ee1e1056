"""The exact GELU: a gate of it in a Llama gives the logits of the NumPy model, and not those of its approximation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from e2e import harness
from e2e.harness import F32, IMPLEMENTATIONS, VECTOR
from numpy.typing import NDArray


def logits(directory: Path, activation: str, implementation: str) -> NDArray[np.float32]:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": activation}))
    with harness.engine(directory, F32, IMPLEMENTATIONS[implementation], {"kv_cache.memory": "4MB"}) as engine:
        return harness.logits(engine, range(3, 43), range(40))


@pytest.mark.slow
def test_the_exact_gelu_is_that_of_numpy_and_not_its_approximation(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "model")
    exact, judged = (logits(model, "gelu", each) for each in (VECTOR, "numpy"))
    np.testing.assert_allclose(exact, judged, rtol=0, atol=2e-5)
    assert np.abs(exact - logits(model, "gelu_pytorch_tanh", VECTOR)).max() > 1e-4
    assert np.array_equal(logits(model, "gelu_new", VECTOR), logits(model, "gelu_fast", VECTOR))
