"""How busy each core was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from infeng_bench.stats import cores


def test_the_cores_of_this_process_are_counted() -> None:
    before = cores.ticks()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    found = cores.used(before, cores.ticks())
    assert set(found) <= {str(core) for core in os.sched_getaffinity(0)} and found
    assert max(one["busy"] for one in found.values()) > 0
    assert all(0 <= share <= 1 for one in found.values() for share in one.values())


def test_ticks_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    stat = tmp_path / "stat"
    lines = [
        "cpu 9 9 9 9 9 9 9 9",
        f"cpu{core} 1 2 3 40 5 6 7 8 0 0",
        "cpu99999 1 1 1 1 1 1 1 1",
        "cpux 1",
        "",
        "intr 7",
    ]
    stat.write_text("\n".join([*lines, "cpux 1", "", "intr 7"]))
    monkeypatch.setattr(cores, "STAT", stat)
    assert cores.ticks() == {core: (19, 8, 72)}
    for text in ("", "cpu0 x\n", f"cpu{core} 1 2\n"):
        stat.write_text(text)
        assert cores.ticks() == {}
    monkeypatch.setattr(cores, "STAT", tmp_path / "none")
    assert cores.ticks() == {}


def test_shares_are_of_the_time_between_two_readings() -> None:
    assert cores.used({0: (10, 0, 100), 1: (5, 5, 10)}, {0: (60, 10, 200), 2: (1, 1, 1)}) == {
        "0": {"busy": 0.5, "stolen": 0.1}
    }
    assert cores.used({0: (10, 0, 100)}, {0: (10, 0, 100)}) == {}  # no time passed
    assert cores.used({0: (10, 0, 100)}, {0: (5, 0, 101)}) == {"0": {"busy": 0.0, "stolen": 0.0}}  # counters of a guest
