"""The memory of a process, from the real /proc and from one made for the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from infeng_inspect import footprint
from infeng_inspect.footprint import Footprint, HugePages

from infeng_core import _native


def test_memory_is_unknown_if_the_system_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "PROC", tmp_path / "none")
    assert (footprint.huge_pages(), footprint.peak_rss(), footprint.footprint()) == (None, None, None)


def test_huge_pages_count_only_memory_that_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/smaps").write_text(
        "7f00-7f10 rw-p 0 00:00 0\nRss:  4096 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr mr mw me ac hg\n"
        "7f20-7f30 rw-p 0 00:00 0\nRss:  8192 kB\nAnonHugePages:  8192 kB\nVmFlags: rd wr mr mw me ac\n"
        "7f40-7f50 rw-p 0 00:00 0\nRss:  2048 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr hg\n"
    )
    monkeypatch.setattr(footprint, "PROC", tmp_path)
    assert footprint.huge_pages() == HugePages(6144 * 1024, 4096 * 1024)
    assert HugePages(6144, 4096).coverage == pytest.approx(2 / 3)
    assert HugePages(0, 0).coverage is None


def test_memory_of_an_arena_shows_and_the_peak_stays() -> None:
    before, peak = footprint.huge_pages(), footprint.peak_rss()
    if before is None or peak is None:
        pytest.skip("the system does not say")
    arena = _native.Arena(64 << 20)
    memoryview(arena)[:] = bytes(64 << 20)
    now = footprint.huge_pages()
    assert now is not None
    assert now.resident >= before.resident + (64 << 20)
    assert now.huge - before.huge >= arena.huge_bytes() - (4 << 20)
    del arena
    assert (footprint.peak_rss() or 0) >= peak


STATUS = "VmHWM:\t 9000 kB\nVmRSS:\t 8000 kB\nRssAnon:\t 5000 kB\nRssFile:\t 3000 kB\n"
ROLLUP = "Rss: 8000 kB\nPss: 5800 kB\nPss_Anon: 4900 kB\nPss_File: 900 kB\nSwapPss: 0 kB\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"status": STATUS, "smaps_rollup": ROLLUP}, Footprint(4900 << 10, 900 << 10, 6900 << 10)),
        ({"status": STATUS}, Footprint(5000 << 10, 3000 << 10, 9000 << 10)),
        ({"status": "VmRSS:\t 8000 kB\n"}, None),
    ],
)
def test_a_process_counts_its_part_of_shared_pages(
    files: dict[str, str], found: Footprint | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    for name, text in files.items():
        (tmp_path / "self" / name).write_text(text)
    assert footprint.footprint() == found


def test_memory_that_is_touched_is_in_the_footprint() -> None:
    before = footprint.footprint()
    if before is None:
        pytest.skip("this system does not say")
    arena = _native.Arena(32 << 20, huge_pages=False)
    np.frombuffer(arena, np.uint8)[:] = 1
    after = footprint.footprint()
    assert after is not None and 30 << 20 < after.total - before.total < 40 << 20
    assert after.peak >= after.anonymous
