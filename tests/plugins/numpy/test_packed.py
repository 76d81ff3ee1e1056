"""A packed adapter holds the numbers of the PEFT directory that it was made from, as far as its storage can."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from e2e import harness
from goldens import peft_files
from goldens.adapted import ADAPTED, Adapted
from goldens.shapes import CASES
from infeng_numpy.adapter import Change
from infeng_numpy.packed import unpacked
from numpy.typing import NDArray

from infeng_core.formats import LoadedModel, load_adapter

# Largest error of B A as a share of its largest element, and of what is stored as it is.
ERRORS = {"f32": 1e-7, "bf16": 0.01, "int8": 0.02}
SINGLE = [case for case in ADAPTED if not case.combines]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LoadedModel]]:
    root, loaded = tmp_path_factory.mktemp("packed"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(root))
        for case in CASES:
            with harness.engine(case.write(root / case.name), harness.F32, {"backend.use": "numpy"}) as engine:
                loaded[case.name] = engine.model
        yield loaded


def product(change: Change) -> NDArray[np.float64]:
    return (change.b * change.scaling) @ change.a


def error(found: object, expected: object) -> float:
    """Return the largest difference; None is 0."""
    return float(np.abs(np.subtract(0 if found is None else found, 0 if expected is None else expected)).max())


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("case", SINGLE, ids=lambda case: case.name)
def test_what_is_unpacked_is_what_was_trained(case: Adapted, dtype: str, models: dict[str, LoadedModel]) -> None:
    model = models[case.base.name]
    handle = unpacked(load_adapter(case.directory, model, dtype), model.config)
    found, expected = handle.adapter, peft_files.read(case.directory, dict(case.base.tensors()))
    assert set(found.changes) == set(expected.changes)
    for name, change in expected.changes.items():
        got = found.changes[name]
        assert len(got.a) == len(change.a)
        assert got.int8_input == (dtype == "int8" and name != "model.embed_tokens")
        if len(change.a):
            assert error(product(got), product(change)) <= ERRORS[dtype] * np.abs(product(change)).max(), name
        # The norm of W + s B A takes what is stored of A and B.
        assert error(got.row_scale, change.row_scale) <= max(1e-6, ERRORS[dtype]), name
        assert error(got.bias, change.bias) <= 1e-6, name
    assert error(found.embed, expected.embed) <= 1e-6
    assert error(*(None if a.head is None else a.head.weight for a in (found, expected))) <= 1e-6
    assert set(found.norms) == set(expected.norms)
    assert all(error(found.norms[name], norm) <= 1e-6 for name, norm in expected.norms.items())
    assert handle.nbytes > 0
