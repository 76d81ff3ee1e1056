"""Phases of a start: every second belongs to one of them."""

from __future__ import annotations

import time

import pytest

from infeng_core.telemetry.startup_times import StartupTimes


def test_phases_add_up_to_the_whole_time_in_the_order_in_which_they_came():
    begin = time.perf_counter()
    times = StartupTimes(2.0)
    time.sleep(0.01)
    times.record("first")
    times.record("inner", {"part": 0.25})
    times.record("first")
    assert list(times.seconds) == ["first", "part", "inner"]
    assert times.seconds["first"] > 2.01 and times.seconds["part"] == 0.25
    assert times.seconds["inner"] == 0.0  # a part that says it took longer than the whole
    assert times.total == pytest.approx(sum(times.seconds.values()))
    assert 2.26 < times.total <= 2.25 + time.perf_counter() - begin


def test_what_was_read_does_not_change():
    times = StartupTimes()
    times.record("one")
    read = times.seconds
    times.record("two")
    assert list(read) == ["one"] and list(times.seconds) == ["one", "two"]
