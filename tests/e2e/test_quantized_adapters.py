"""Adapters in every storage over integer weights, against the NumPy backend, which computes with the numbers they mean.

As in test_quantized_models.py, a value between two steps of int8 may be rounded to either of them: hence a tolerance of
a share of the logits' spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from goldens.adapted import ADAPTED
from goldens.shapes import CASES, Case
from numpy.typing import NDArray

MEAN, MOST = 0.02, 0.15  # tolerated difference, as a share of the logits' standard deviation


def logits(directory: Path, case: Case, *settings: dict[str, object]) -> dict[str, NDArray[np.float32]]:
    """Return the logits of three prompts for each kind of adapter, (9, vocab) each."""
    found = {}
    with harness.engine(directory, *settings, rows=64) as engine:
        dtype = engine.config.adapters.dtype
        for each in (each for each in ADAPTED if each.base is case and each.fits(dtype)):
            adapters = harness.applied(engine, each.adapters)
            parts = [
                harness.logits(engine, p, [len(p) // 2, len(p) - 2, len(p) - 1], adapters=adapters)
                for p in each.prompts
            ]
            found[each.name] = np.concatenate(parts)
    return found


def every_storage() -> Iterator[Any]:
    """Yield case, format and storage: each format with each storage in one case, the others in the slow suite."""
    for i, case in enumerate(CASES):
        for j, format in enumerate(("int8-row", "int4-g64", "f32")):
            for k, dtype in enumerate(("int8", "bf16", "f32", "int8t4")):
                is_usual = i < 3 and (i == j if dtype == "int8t4" else (i + j) % 3 == k)
                marks = () if is_usual else pytest.mark.slow
                yield pytest.param(case, format, dtype, marks=marks, id=f"{case.name}-{format}-{dtype}")


@pytest.mark.parametrize(("case", "format", "dtype"), list(every_storage()))
def test_adapter_storages_compute_with_their_dequantized_values(
    case: Case, format: str, dtype: str, reduced: dict[str, Path]
) -> None:
    settings = harness.F32 | {"model.format": format, "adapters.dtype": dtype}
    native = logits(reduced[case.name], case, settings)
    plain = logits(reduced[case.name], case, settings, {"backend.use": "numpy"})
    for name, expected in plain.items():
        off = np.abs(native[name] - expected) / expected.std()
        if (format, dtype) in (("f32", "f32"), ("f32", "bf16")):
            assert off.max() < 1e-4, name
        assert off.mean() < MEAN, name
        assert off.max() < MOST, name


@pytest.mark.parametrize("dtype", ["int8", "int8t4", "bf16"])
def test_the_tolerance_tells_storages_apart(dtype: str, reduced: dict[str, Path]) -> None:
    """Over exact weights a storage is off by more than the NumPy backend is from the native one."""
    case = CASES[0]
    exact = logits(reduced[case.name], case, harness.F32)["lora"]
    stored = logits(reduced[case.name], case, harness.F32 | {"adapters.dtype": dtype})["lora"]
    plain = logits(reduced[case.name], case, harness.F32 | {"adapters.dtype": dtype, "backend.use": "numpy"})["lora"]
    assert np.abs(stored - exact).mean() > 3 * np.abs(stored - plain).mean()
