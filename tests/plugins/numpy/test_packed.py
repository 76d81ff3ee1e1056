"""A packed adapter holds the numbers of the PEFT directory that it was made from, as far as its storage can."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_adapter
import tiny_model
from adapter_calls import load_adapter
from e2e import harness
from goldens import peft_files
from goldens.adapted import ADAPTED, Adapted
from goldens.shapes import CASES
from infeng_convert.conversion import convert
from infeng_numpy.activations import Rounding
from infeng_numpy.adapter import Change
from infeng_numpy.packed import unpacked
from infeng_numpy.weights import rounding_of
from numpy.typing import NDArray

from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.tensors import LoadedModel

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
def test_unpacked_deltas_equal_the_trained_ones(case: Adapted, dtype: str, models: dict[str, LoadedModel]) -> None:
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


def test_an_adapter_over_a_rotated_base_gives_the_same_logits(tmp_path: Path) -> None:
    shape = tiny_model.Shape(hidden=128, intermediate=192, heads=2, kv_heads=1, head_dim=64)
    source, adapter = tiny_model.write(tmp_path / "model", shape), tiny_adapter.write(tmp_path / "a", 3, shape=shape)
    found = []
    for format in ("int4-p32", "int4-p32-a128-h64"):
        convert(source, tmp_path / format, FormatChoice(format, {"embed": "int8-row"}), progress=False)
        model = read_native(tmp_path / format, builtin_format)
        handle = unpacked(load_adapter(adapter, model, "int8"), model.config, partial(rounding_of, model))
        found.append(handle.adapter.changes)
    plain, turned = found
    assert {change.rounding for change in turned.values()} == {Rounding(128, block=64)}
    for name, change in plain.items():
        assert error(product(turned[name]), product(change)) <= 2 * ERRORS["int8"] * np.abs(product(change)).max(), name
