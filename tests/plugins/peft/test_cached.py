"""Cached packed adapters have the same contents as packing, and never those of other files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adapter_calls import load_adapter
from goldens.adapted import ADAPTED, Adapted
from infeng_peft import cached, reader
from safetensors.numpy import load_file, save_file

from infeng_core.formats.adapters.packed import PackedAdapter
from infeng_core.formats.tensors import LoadedModel

CASE = next(case for case in ADAPTED if case.name == "lora")
GB = 1 << 30


@pytest.fixture(scope="module")
def base(bases: Callable[[Adapted, str], LoadedModel]) -> LoadedModel:
    return bases(CASE, "int8-row")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE.directory, tmp_path / "adapter"))


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a cache of the test's own has them; files need not rest."""
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(cached, "REST_SECONDS", 0.0)
    return tmp_path / "own" / "adapters"


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories that are read and packed."""
    found: list[Path] = []
    read = reader.read_peft
    monkeypatch.setattr(reader, "read_peft", lambda path, config: (found.append(path), read(path, config))[1])
    return found


def arrays(adapter: PackedAdapter) -> list[bytes]:
    return [
        np.ascontiguousarray(array).tobytes()
        for _, tensor in sorted(adapter.tensors.items())
        for array in (tensor.a, tensor.scaling, *(part.b for part in tensor.parts))
    ]


@pytest.mark.parametrize("case", [case for case in ADAPTED if not case.combines], ids=lambda case: case.name)
def test_a_cached_adapter_equals_the_packed_one(
    case: Adapted, bases: Callable[[Adapted, str], LoadedModel], entries: Path, packed: list[Path]
):
    base = bases(case, "int8-row")
    for scale in (1.0, 0.5):
        fresh, made, found = (load_adapter(case.directory, base, "int8", scale=scale, cache=n) for n in (0, GB, GB))
        assert fresh.id == made.id == found.id and found.source == case.directory
        assert arrays(fresh) == arrays(found) and (fresh.reach, fresh.base_name) == (found.reach, found.base_name)
    assert len(packed) == 4 and len(list(entries.iterdir())) == 2


def test_files_that_change_are_packed_again(adapter: Path, base: LoadedModel, entries: Path, packed: list[Path]):
    def loaded() -> str:
        return load_adapter(adapter, base, "int8", cache=GB).id

    first = loaded()
    weights = adapter / "adapter_model.safetensors"
    found = weights.stat()
    tensors = {name: 2 * tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights)
    os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))  # of the same size and time: only the change's differs
    second = loaded()
    assert first != second == loaded() and len(packed) == 2
    config = adapter / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": ', '"lora_alpha": 1'))
    assert loaded() not in (first, second)


def test_a_damaged_entry_is_packed_again(adapter: Path, base: LoadedModel, entries: Path, packed: list[Path]):
    good = load_adapter(adapter, base, "int8", cache=GB).id
    [file] = entries.glob("*/*")
    for damage in (lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:100], lambda data: b""):
        file.write_bytes(damage(file.read_bytes()))
        assert load_adapter(adapter, base, "int8", cache=GB).id == good
        packed.clear()
        assert load_adapter(adapter, base, "int8", cache=GB).id == good and not packed


def test_files_that_were_just_written_are_not_cached(
    adapter: Path, base: LoadedModel, entries: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cached, "REST_SECONDS", 60.0)
    load_adapter(adapter, base, "int8", cache=GB)
    assert not entries.exists()


def test_the_adapter_cache_is_bounded_and_readable_only_by_its_owner(
    adapter: Path, base: LoadedModel, entries: Path, packed: list[Path]
):
    load_adapter(adapter, base, "int8", cache=GB)
    [entry] = entries.iterdir()
    assert entry.stat().st_mode & 0o077 == 0
    size = sum(file.stat().st_size for file in entry.iterdir())
    os.utime(entry, (0, time.time() - 100))
    load_adapter(adapter, base, "int8", scale=0.5, cache=size + 100)
    assert len(list(entries.iterdir())) == 1 and not entry.exists()
    load_adapter(adapter, base, "int8", scale=0.25, cache=10)  # larger than all that may be kept
    assert len(list(entries.iterdir())) == 1


def test_an_unusable_cache_is_ignored(adapter: Path, base: LoadedModel, entries: Path):
    entries.parent.mkdir()
    entries.write_text("no folder")
    assert load_adapter(adapter, base, "int8", cache=GB).id == load_adapter(adapter, base, "int8").id
