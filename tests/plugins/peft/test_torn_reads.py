"""Adapters that are overwritten while they are read give old contents, new ones, or an error."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from goldens.adapted import ADAPTED, Adapted
from safetensors.numpy import load_file, save

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters import snapshot
from infeng_core.formats.adapters.artifact import FILE
from infeng_core.formats.tensors import LoadedModel

CASE = next(case for case in ADAPTED if case.name == "lora")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(bases: Callable[[Adapted, str], LoadedModel]) -> LoadedModel:
    return bases(CASE, "int8-row")


@pytest.fixture(autouse=True)
def no_pause() -> None:
    """Other threads write the files here, so pauses keep their length."""


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE.directory, tmp_path / "adapter"))


def versions(adapter: Path) -> list[bytes]:
    """Two weights files of the same size."""
    tensors = load_file(adapter / WEIGHTS)
    return [save({name: np.full_like(tensor, value) for name, tensor in tensors.items()}) for value in (1.0, 2.0)]


def overwrite(path: Path, data: bytes) -> float:
    """Write into the same file, in two halves, as a slow writer does; returns the seconds from one to the other."""
    with path.open("r+b", buffering=0) as file:
        begin = time.monotonic()
        file.write(data[: len(data) // 2])
        time.sleep(0.002)
        file.write(data[len(data) // 2 :])
        return time.monotonic() - begin


def id_of(adapter: Path, base: LoadedModel) -> str:
    return load_adapter(adapter, base, "int8").id


def ids(path: Path, contents: list[bytes], base: LoadedModel) -> set[str]:
    found = set()
    for data in contents:
        path.write_bytes(data)
        found.add(id_of(path.parent, base))
    return found


def test_a_file_that_is_overwritten_repeatedly_is_never_read_mixed(adapter: Path, base: LoadedModel) -> None:
    contents = versions(adapter)
    known = ids(adapter / WEIGHTS, contents, base)
    assert len(known) == 2
    stop = threading.Event()
    gaps: list[float] = []

    def write() -> None:
        turn = 0
        while not stop.is_set():
            gaps.append(overwrite(adapter / WEIGHTS, contents[turn % 2]))
            turn += 1
            stop.wait((0.0, 0.003, 0.06)[turn % 3])

    writer = threading.Thread(target=write)
    writer.start()
    refused, found = 0, set[str]()
    try:
        for _ in range(40):
            try:
                found.add(id_of(adapter, base))
            except AdapterError as error:
                assert "is written while it is read: load it when it is complete" in str(error)
                refused += 1
    finally:
        stop.set()
        writer.join()
    assert found, f"{refused} of 40 were refused"
    # a file that rests longer than the pause is taken as complete: what a writer who was held up that long left in it
    # may be read, once for each time
    assert len(found - known) <= sum(gap >= snapshot.PAUSE for gap in gaps)
    assert id_of(adapter, base) in known


class Meanwhile:
    """Changes files behind the first reads of a file's data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], times: int) -> None:
        self.times = times
        inner = snapshot.read_into

        def reading(handle: int, view: memoryview, begin: int, path: Path) -> None:
            half = len(view) // 2
            inner(handle, view[:half], begin, path)
            if begin > 8 and path.name != CONFIG and self.times:
                self.times -= 1
                change()
            inner(handle, view[half:], begin + half, path)

        monkeypatch.setattr(snapshot, "read_into", reading)


@pytest.mark.parametrize("how", ["in place", "renamed", "stamped back", "configuration"])
def test_a_change_in_the_middle_is_noticed_and_the_file_read_again(
    adapter: Path, base: LoadedModel, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path, contents = adapter / WEIGHTS, versions(adapter)
    path.write_bytes(contents[1])
    config = (adapter / CONFIG).read_text()
    changed = config.replace('"lora_alpha": ', '"lora_alpha": 1')
    assert changed != config
    if how == "configuration":
        (adapter / CONFIG).write_text(changed)
    wanted = id_of(adapter, base)
    (adapter / CONFIG).write_text(config)
    path.write_bytes(contents[0])
    before = path.stat()

    def change() -> None:
        if how == "configuration":
            path.write_bytes(contents[1])
            (adapter / CONFIG).write_text(changed)
        elif how == "renamed":
            (adapter / "new").write_bytes(contents[1])
            (adapter / "new").rename(path)
        else:
            overwrite(path, contents[1])
        if how == "stamped back":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    meanwhile = Meanwhile(monkeypatch, change, times=1)
    assert id_of(adapter, base) == wanted
    assert meanwhile.times == 0


def test_a_file_that_never_rests_is_refused(adapter: Path, base: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PAUSE", 0.001)
    data = versions(adapter)[0]
    (adapter / WEIGHTS).write_bytes(data)
    Meanwhile(monkeypatch, lambda: overwrite(adapter / WEIGHTS, data), times=1000)
    with pytest.raises(AdapterError, match=f"{adapter}: is written while it is read"):
        id_of(adapter, base)


def test_a_file_that_is_cut_while_it_is_read_is_refused(
    adapter: Path, base: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    Meanwhile(monkeypatch, lambda: os.truncate(adapter / WEIGHTS, 4000), times=1)  # as a training that saves again does
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors: "):
        id_of(adapter, base)


def test_an_artifact_that_is_replaced_while_it_is_read_is_the_old_or_the_new_one(
    adapter: Path, base: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Any] = []
    for number, data in enumerate(versions(adapter)):
        (adapter / WEIGHTS).write_bytes(data)
        made.append(convert_adapter(adapter, tmp_path / f"artifact{number}", base, "int8"))
    old, new = (one.path for one in made)
    wanted, data = id_of(new, base), (new / FILE).read_bytes()
    Meanwhile(monkeypatch, lambda: overwrite(old / FILE, data), times=1)
    assert id_of(old, base) == wanted
