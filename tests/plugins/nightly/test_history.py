"""A history: lines that survive damage, one writer at a time, and files that are none."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nightly_parts import LOSS, run_of, steady

pytest.importorskip("infeng_nightly", reason="the nightly wheel is not installed")

from infeng_nightly import history
from infeng_nightly.figures import Figure
from infeng_nightly.history import Run

from infeng_core.api import ResourceError, UsageError


@pytest.fixture
def run() -> Run:
    facts: dict[str, Any] = {"commit": "abc", "versions": {"infeng-core": "1"}, "kernels": {"demo": ("linear: a/b",)}}
    return run_of([steady(100.0), steady(0.07, LOSS, what="quality")], judged=({"figure": "x"},), **facts)


def test_a_run_is_read_back_as_it_was(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "history.jsonl"
    with history.opened(place) as file:
        assert file.runs() == []
        file.append(run)
        file.append(run_of([steady(1.0)], time="2025"))
        assert len(file.runs()) == 2
    assert [one.time for one in history.read(place)] == ["2025", "2026-01-01"]  # the oldest first
    assert history.read(place)[1] == run
    line = json.loads(place.read_text().splitlines()[0])
    assert line["schema"] == "infeng-nightly/1"
    one = line["figures"][0]
    assert one["repeats"] == 5 == len(one["readings"]) and one["low"] <= one["median"] <= one["high"]
    assert (one["unit"], one["better"]) == ("tokens/s", "higher")


def test_a_run_begins_a_line_of_its_own_after_an_incomplete_one(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "history.jsonl"
    place.write_text('{"schema": "infeng-nightly/1", "time": "20')
    with history.opened(place) as file:
        file.append(run)
    assert history.read(place) == [run]
    place.write_bytes(place.read_bytes()[:-40])  # cut by a full disk
    with history.opened(place) as file:
        file.append(run)
    assert history.read(place) == [run]


def test_a_damaged_line_is_skipped(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "history.jsonl"
    whole = json.dumps(run.to_dict()).encode()
    other = whole.replace(b'"figures": [', b'"figures": 7, "x": [')
    damaged = [b"", b"\xff\xfe", b"[" * 10**5, b"null", b"[]", b'{"schema": "infeng-nightly/1"}', whole[:-1], whole * 2,
               whole.replace(b'"infeng-nightly/1"', b'"infeng-nightly/9"'), other,
               whole.replace(b"0.07", b"NaN"), b'{"a": 1, "a": 2}', b" " * 10]  # fmt: skip
    place.write_bytes(b"\n".join([*damaged, whole, *damaged]))
    assert history.read(place) == [run]


@pytest.mark.parametrize(
    "change",
    [
        {"readings": []}, {"readings": [1e999]}, {"readings": ["1"]}, {"readings": [True]}, {"readings": [0.0]},
        {"readings": [-1.0]}, {"readings": [10**400]}, {"readings": [1.0] * 1001}, {"readings": None}, {"low": None},
        {"high": "x"}, {"low": 9e9}, {"name": 7}, {"name": "x" * 501}, {"better": "more"}, {"scale": "log"},
        {"least": -1}, {"spread": 2}, {"unit": None}, {"model": []}, {"engine": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_figure_is_left_out(change: dict[str, Any]) -> None:
    sound = steady(100.0).to_dict()
    assert Figure.parse(sound) == steady(100.0)
    assert Figure.parse({**sound, **change}) is None
    for key in ("readings", "low", "high", "name", "better", "scale", "model", "what", "work", "engine", "unit"):
        assert Figure.parse({name: value for name, value in sound.items() if name != key}) is None
    assert Figure.parse(7) is None


def test_a_run_with_odd_facts_is_read(run: Run) -> None:
    data = run.to_dict()
    for key, value in (("commit", 7), ("versions", []), ("kernels", {"a": 7}), ("settings", 1), ("judged", {})):
        found = Run.parse(json.dumps({**data, key: value}).encode())
        assert found is not None and found.figures == run.figures


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "history.jsonl"
    with history.opened(place):
        with pytest.raises(UsageError, match="another run measures for it"), history.opened(place):
            raise AssertionError("it was opened")
        assert history.read(place) == []  # reading needs no lock
    with history.opened(place) as file:
        file.append(run)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@pytest.mark.parametrize(
    "make", [pipe, lambda folder: folder, lambda _: Path("/dev/null")], ids=["pipe", "folder", "device"]
)
def test_what_is_no_regular_file_is_refused_at_once(make: Callable[[Path], Path], tmp_path: Path) -> None:
    place = make(tmp_path)
    with pytest.raises(UsageError), history.opened(place):
        raise AssertionError("it was opened")
    with pytest.raises(UsageError):
        history.read(place)


def test_a_file_or_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        history.read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="no such file"), history.opened(tmp_path / "none" / "history.jsonl"):
        raise AssertionError("it was opened")


def test_sizes_are_bounded(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "history.jsonl"
    with history.opened(place) as file:
        file.append(run)
    size = place.stat().st_size
    monkeypatch.setattr(history, "MOST_BYTES", size + 10)
    with history.opened(place) as file:
        with pytest.raises(ResourceError, match="would become too large"):
            file.append(run)
        assert file.runs() == [run]
    assert place.stat().st_size == size
    monkeypatch.setattr(history, "MOST_BYTES", size - 1)
    with pytest.raises(UsageError, match="has more than"):
        history.read(place)
    with history.opened(place) as file, pytest.raises(UsageError, match="has more than"):
        file.runs()
    monkeypatch.setattr(history, "MOST_LINE", 10)
    assert Run.parse(json.dumps(run.to_dict()).encode()) is None


def test_a_disk_that_is_full_leaves_the_history_as_it_was(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "history.jsonl"
    with history.opened(place) as file:
        file.append(run)
        before, write = place.read_bytes(), os.write
        written = 0

        def full(handle: int, data: Any) -> int:
            nonlocal written
            if written:
                raise OSError(28, "No space left on device")
            written = write(handle, bytes(data)[:100])
            return written

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ResourceError, match="No space left"):
            file.append(run)
    assert place.read_bytes() == before


def test_the_lock_is_the_systems_own(tmp_path: Path) -> None:
    place = tmp_path / "history.jsonl"
    with history.opened(place), place.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_figures_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    with history.opened(tmp_path / "history.jsonl") as file, pytest.raises(ValueError, match="JSON compliant"):
        file.append(run_of([steady(math.nan)]))
    assert (tmp_path / "history.jsonl").read_bytes() == b""
