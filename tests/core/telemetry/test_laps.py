"""Phases of a start: every second belongs to one phase."""

from __future__ import annotations

import time

import pytest

from infeng_core.telemetry.laps import Laps


def test_phases_add_up_to_the_whole_time_in_the_order_in_which_they_came():
    begin = time.perf_counter()
    laps = Laps(2.0)
    time.sleep(0.01)
    laps.end("first")
    laps.end("inner", {"part": 0.25})
    laps.end("first")
    assert list(laps.seconds) == ["first", "part", "inner"]
    assert laps.seconds["first"] > 2.01 and laps.seconds["part"] == 0.25
    assert laps.seconds["inner"] == 0.0  # a part that says it took longer than the whole
    assert laps.total == pytest.approx(sum(laps.seconds.values()))
    assert 2.26 < laps.total <= 2.25 + time.perf_counter() - begin


def test_phases_that_were_read_do_not_change():
    laps = Laps()
    laps.end("one")
    read = laps.seconds
    laps.end("two")
    assert list(read) == ["one"] and list(laps.seconds) == ["one", "two"]
