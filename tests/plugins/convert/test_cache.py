"""The cache of conversions: a converted model is reused, and the cache stays within its bound."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_parts import load
from infeng_convert.cached import REST_SECONDS

from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config

Maker = Callable[..., Path]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of conversions of an empty cache, and a folder of its own for temporary files."""
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache" / "models"


def loaded(directory: Path, **overrides: Any) -> LoadedModel:
    return load(str(directory), load_config(overrides={f"model.{name}": value for name, value in overrides.items()}))


def rested(folder: Path) -> dict[str, int]:
    """Make the last uses of all entries old, in the same order; return their sizes."""
    for number, entry in enumerate(sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)):
        os.utime(entry, (0, time.time() - 100 * REST_SECONDS + number))
    return {entry.name: sum(file.stat().st_size for file in entry.iterdir()) for entry in folder.iterdir()}


def test_the_second_start_converts_nothing(make_model: Maker, models: Path):
    directory = make_model()
    first, second = loaded(directory), loaded(directory)
    assert first.conversion_seconds > 0 == second.conversion_seconds
    assert first.id == second.id and len(list(models.iterdir())) == 1


def test_the_least_recently_used_entry_is_removed_when_a_new_one_needs_room(make_model: Maker, models: Path):
    directory = make_model()
    mapped = loaded(directory, format="bf16", load="mmap", cache="1GB")
    for format in ("int8-row", "f32"):
        loaded(directory, format=format, cache="1GB")
    sizes = rested(models)
    assert len(sizes) == 3
    loaded(directory, format="int8-row", cache=str(max(sizes.values())))  # used now: nothing is made, nothing goes
    assert rested(models) == sizes
    loaded(directory, format="int4-g64", cache=str(sum(sizes.values())))
    left = {entry.name for entry in models.iterdir()}
    assert len(left) == 3 and len(left - sizes.keys()) == 1  # and nothing half removed
    assert loaded(directory, format="int8-row").conversion_seconds == 0  # it was used after the others
    assert loaded(directory, format="bf16").conversion_seconds > 0
    assert np.isfinite(mapped.tensors["embed"].dequantize()).all()


def test_recently_used_entries_and_the_new_one_stay(make_model: Maker, models: Path):
    directory = make_model()
    for format in ("f32", "bf16"):
        loaded(directory, format=format, cache="1")
    assert len(list(models.iterdir())) == 2


def test_other_folders_of_the_cache_are_left_alone(make_model: Maker, models: Path):
    directory = make_model()
    loaded(directory, format="f32")
    (models / "notes").mkdir()
    (models / "notes" / "manifest.yaml").write_text("mine")
    rested(models)
    loaded(directory, format="bf16", cache="1")
    assert (models / "notes" / "manifest.yaml").exists() and len(list(models.iterdir())) == 2


@pytest.mark.parametrize("how", ["copy", "mmap"])
def test_without_a_cache_nothing_is_kept(make_model: Maker, models: Path, how: str):
    directory = make_model()
    kept = loaded(directory, format="f32")
    found = loaded(directory, format="f32", load=how, cache="none")
    assert found.conversion_seconds > 0 and found.id == kept.id and found.tokenizer_dir == directory
    assert found.tensors["embed"].dequantize().tobytes() == kept.tensors["embed"].dequantize().tobytes()
    assert not list(Path(tempfile.gettempdir()).iterdir())
    assert len(list(models.iterdir())) == 1
