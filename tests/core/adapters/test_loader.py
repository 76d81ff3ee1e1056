"""The threads that load adapters: which priority they have, and what comes after a long job."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infeng_core.adapters.loader import NICENESS, Loader
from infeng_core.formats.adapters.artifact import FILE, SMALL, is_small

WAIT = 10.0


@dataclass(eq=False)
class Timed:
    """A job that notes the niceness of its thread."""

    is_brief: bool
    niceness: int = -1
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def entry(self) -> object:
        return self

    def run(self) -> None:
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.done.set()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process has one niceness")
@pytest.mark.parametrize("workers", [0, 4])
def test_long_jobs_stand_behind_the_batch_and_brief_ones_do_not(workers: int):
    loader: Loader[Timed] = Loader(Timed.run, lambda job, why: True, WAIT, workers)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    jobs = [Timed(is_brief) for is_brief in (True, False, True, True, False, True)]
    for job in jobs:
        loader.add(job)
    for job in jobs:
        assert job.done.wait(WAIT)
        assert job.niceness == (own if job.is_brief else min(19, own + workers + NICENESS))


def test_small_adapters_of_the_engine_s_own_format_are_brief(tmp_path: Path):
    for name, size in (("small", SMALL), ("large", SMALL + 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).touch()
        os.truncate(tmp_path / name / FILE, size)
    assert is_small(str(tmp_path / "small"))
    assert not is_small(str(tmp_path / "large"))
    assert not is_small(str(tmp_path / "absent"))
    assert not is_small("a\0name")
