"""Verdicts about a library: read once per process, and again after other processes have written."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from infeng_inspect import verdicts as module
from infeng_inspect.verdicts import Verdicts


def verdicts(folder: Path) -> Verdicts:
    return Verdicts("a" * 64, "b" * 64, ["avx2"], folder)


def line(text: str) -> bytes:
    """Return a line that says ``text``."""
    return b"%08x %s\n" % (zlib.crc32(text.encode()), text.encode())


def test_verdicts_of_other_processes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = verdicts(tmp_path)
    first.put("one", {"fits": True})
    three = line('["three",{"fits":true}]')
    with first.path.open("ab") as file:  # another process
        file.write(line('["two",{"fits":false}]') + three[:20])
    assert verdicts(tmp_path).get("two") == {"fits": False}
    parsed: list[bytes] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or real(text))
    with first.path.open("ab") as file:
        file.write(three[20:])
    found = verdicts(tmp_path)
    assert [found.get(key) for key in ("one", "two", "three")] == [{"fits": True}, {"fits": False}, {"fits": True}]
    assert not any(b"one" in text or b"two" in text for text in parsed)


@pytest.mark.parametrize("keeps_its_start", [False, True])
def test_a_replaced_file_is_read_anew(tmp_path: Path, keeps_its_start: bool) -> None:
    first = verdicts(tmp_path)
    first.put("one", {"fits": True})
    first.put("two", {"fits": True})
    assert verdicts(tmp_path).get("two") == {"fits": True}
    start: list[Any] = ["one", {"fits": keeps_its_start}]
    first.path.write_bytes(line(json.dumps(start)) + line('["three", {"fits": true}]') * 3)
    found = verdicts(tmp_path)
    assert found.get("one") == {"fits": keeps_its_start} and found.get("three") == {"fits": True}
    assert found.get("two") is None


def test_an_engine_does_not_see_verdicts_added_after_its_read(tmp_path: Path) -> None:
    one = verdicts(tmp_path)
    one.path.parent.mkdir(parents=True)
    one.path.write_bytes(line('["x", {"fits": true}]'))
    one, other = verdicts(tmp_path), verdicts(tmp_path)
    one.put("y", {"fits": True})
    assert other.get("y") is None and other.get("x") == {"fits": True}
    assert verdicts(tmp_path).get("y") == {"fits": True}


# -------------------------------------------------------------------------------------- what is not believed of one ---


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return data of which bits have changed, or a part is missing, twice there or something else."""
    at, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    junk = rng.choice((b"[" * 5000, b"null", b"\xff\xfe", b"\0" * 100, b'["one",{}]', b"1" * 5000, b"\n\n", b"0 "))
    flipped = bytes([data[at] ^ 1 << rng.randrange(8)])
    return rng.choice((
        data[:at] + flipped + data[at + 1 :],
        data[:at] + data[end:],
        data[:end] + data[at:],
        data[:at] + junk + data[at:],
        data[:at],
    ))  # fmt: skip


def test_each_line_of_a_damaged_file_is_read_correctly_or_ignored(tmp_path: Path) -> None:
    first = verdicts(tmp_path)
    written = {f"fits kernel-{n} {{}}": {"fits": bool(n % 2), "case": {"k": n}} for n in range(30)}
    for key, value in written.items():
        first.put(key, value)
    whole, rng, kept = first.path.read_bytes(), random.Random(3), 0
    for _ in range(600):
        module._KEPT.clear()
        first.path.write_bytes(damaged(whole, rng))
        found = verdicts(tmp_path)._data
        assert found.items() <= written.items()
        kept += len(found)
    assert kept > 600 * 15  # what is whole is used


def test_a_file_that_has_grown_too_large_is_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = verdicts(tmp_path)
    first.put("one", {"fits": True})
    first.put("long", {"text": "x" * module.MOST_LINE})
    assert first.get("long") and first.path.stat().st_size < 1000
    monkeypatch.setattr(module, "MOST_BYTES", 20)
    again = verdicts(tmp_path)
    assert again.get("one") is None and not again.path.exists()
    again.put("two", {"fits": True})
    assert again.path.exists()


def foreign(path: Path) -> None:
    os.chown(path, 12345, 12345)


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.rename(path.with_name("aside"))
        make(path)

    return change


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(foreign, marks=as_root),
        pytest.param(lambda path: foreign(path.parent), marks=as_root),
        pytest.param(lambda path: foreign(path.parent.parent), marks=as_root),
        lambda path: path.chmod(0o666),
        lambda path: path.parent.chmod(0o777),
        lambda path: path.parent.parent.chmod(0o777),
        replaced(os.mkfifo),
        replaced(Path.mkdir),
        replaced(lambda path: path.symlink_to("aside")),
        replaced(lambda path: path.symlink_to("/dev/zero")),
    ],
    ids=["file", "folder", "cache", "open file", "open folder", "open cache", "pipe", "directory", "link", "device"],
)
def test_a_file_that_another_user_could_have_written_is_neither_read_nor_extended(
    tmp_path: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "of its own"
    first = verdicts(cache)
    first.put("open", {"code": "crashed", "text": "forged"})
    before = first.path.read_bytes()
    change(first.path)
    module._KEPT.clear()
    again = verdicts(cache)
    assert again.get("open") is None
    again.put("open", {"code": "ready"})
    assert again.get("open") == {"code": "ready"}  # in this engine
    held = [path for path in first.path.parent.iterdir() if path.is_file() and not path.is_symlink()]
    assert [path.read_bytes() for path in held] == [before]


def test_verdicts_written_under_an_open_umask_are_trusted(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        verdicts(tmp_path / "made").put("one", {"fits": True})
    finally:
        os.umask(before)
    module._KEPT.clear()
    assert verdicts(tmp_path / "made").get("one") == {"fits": True}
