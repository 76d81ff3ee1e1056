"""The backend as the engine meets it: found by name, refuses what it does not know, honest about what it runs."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from goldens.shapes import BIASED

from infeng_core import Engine
from infeng_core.errors import InfengError, KernelError
from infeng_core.formats.artifacts import reader
from infeng_core.formats.quant import BUILTIN
from infeng_core.plug.hookspecs import BACKENDS

NUMPY = {"backend.use": "numpy"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return BIASED.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_every_op_is_reported_as_numpy(directory: Path) -> None:
    with harness.engine(directory, harness.F32, NUMPY) as engine:
        assert {line.library for line in engine.executable.bound()} == {"numpy"}
        assert engine.executable.kv_bytes == 2 * 2 * engine.limits.kv_blocks * 16 * 2 * 16 * 4


def test_weights_are_streamed_so_that_the_host_holds_no_packed_model(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with harness.engine(directory, harness.F32, NUMPY) as engine:  # the conversion is cached
        expected = harness.logits(engine, BIASED.prompt[:40], [10, 39])
    memories: list[weakref.ref[Any]] = []
    alive: list[int] = []
    make = reader.aligned_bytes

    def counted(count: int) -> Any:
        alive.append(sum(one() is not None for one in memories))
        memory = make(count)
        memories.append(weakref.ref(memory.base))
        return memory

    monkeypatch.setattr(reader, "aligned_bytes", counted)
    monkeypatch.setattr(reader, "_arena", lambda *_: pytest.fail("the model was copied to host memory"))
    with harness.engine(directory, harness.F32, NUMPY) as engine:
        assert len(memories) == len(engine.model.tensors) + len(engine.model.vectors)
        assert max(alive) == 1  # the one before, which the loop still names
        assert harness.logits(engine, BIASED.prompt[:40], [10, 39]).tobytes() == expected.tobytes()
        assert not any(one() is not None for one in memories)


def test_logits_do_not_depend_on_chunks_of_a_prompt(directory: Path) -> None:
    with harness.engine(directory, harness.F32, NUMPY) as engine:
        whole = harness.logits(engine, BIASED.prompt[:100], [50, 99])
        parts = harness.logits(engine, BIASED.prompt[:100], [50, 99], chunks=9)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "format",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name in ("int4-g32", "int5-p32", "int6-p32", "int4-a128")))
        for name in (*BUILTIN, "int4-p32-a128-h64")
        if name != "bf16"
    ],
)
def test_over_integer_weights_it_differs_from_native_only_by_int8_rounding(directory: Path, format: str) -> None:
    """Most rows agree to the last digits of binary32; one whose activation was rounded the other way, and what reads it
    in the cache, do not. In one of these prompts no activation of the first rows, which all others read, is on such an
    edge."""

    def departs(begin: int, end: int) -> np.ndarray:
        found = []
        for settings in ({}, NUMPY):
            with harness.engine(directory, {**harness.F32, "model.format": format}, settings) as engine:
                found.append(harness.logits(engine, BIASED.prompt[begin:end], range(end - begin)))
        return np.abs(found[0] - found[1]).max(axis=1) / np.abs(found[1]).max()

    for begin, end in ((2, 202), (50, 110), (100, 160), (140, 200)):
        rows = departs(begin, end)
        assert rows.max() < (5e-6 if format == "f32" else 0.05)
        if np.median(rows) < 5e-6:
            return
    raise AssertionError("most rows of every prompt depart")


def test_another_family_is_refused(directory: Path) -> None:
    with harness.engine(directory, harness.F32, NUMPY) as engine:
        backend = engine.plugins.get(BACKENDS, "numpy")
        config = dataclasses.replace(engine.model.config, family="mamba")
        model = dataclasses.replace(engine.model, config=config)
        with pytest.raises(KernelError, match="mamba"):
            backend.compile(model, engine.config, engine.limits, engine.selector)


def test_a_disabled_plugin_is_not_used(directory: Path) -> None:
    with pytest.raises(InfengError, match="numpy"):
        Engine(directory, overrides=NUMPY | {"plugins.disable": ["numpy"]})
