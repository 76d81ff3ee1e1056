"""What is known of a library: read once by a process, and again where others have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infeng_core.kernels.check.verdicts import Verdicts


def verdicts(folder: Path) -> Verdicts:
    return Verdicts("a" * 64, "b" * 64, ["avx2"], folder)


def test_what_others_have_learnt_is_read_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = verdicts(tmp_path)
    first.put("one", {"fits": True})
    with first.path.open("a") as file:  # another process
        file.write('["two", {"fits": false}]\n["three", {"fits')
    assert verdicts(tmp_path).get("two") == {"fits": False}
    parsed: list[bytes] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or real(text))
    with first.path.open("a") as file:
        file.write('": true}]\n')
    found = verdicts(tmp_path)
    assert [found.get(key) for key in ("one", "two", "three")] == [{"fits": True}, {"fits": False}, {"fits": True}]
    assert not any(b"one" in text or b"two" in text for text in parsed)


@pytest.mark.parametrize("keeps_its_start", [False, True])
def test_a_file_that_has_become_another_one_is_read_anew(tmp_path: Path, keeps_its_start: bool) -> None:
    first = verdicts(tmp_path)
    first.put("one", {"fits": True})
    first.put("two", {"fits": True})
    assert verdicts(tmp_path).get("two") == {"fits": True}
    start: list[Any] = ["one", {"fits": keeps_its_start}]
    first.path.write_text(json.dumps(start) + "\n" + '["three", {"fits": true}]\n' * 3)
    found = verdicts(tmp_path)
    assert found.get("one") == {"fits": keeps_its_start} and found.get("three") == {"fits": True}
    assert found.get("two") is None


def test_one_engine_s_verdicts_are_not_those_of_another(tmp_path: Path) -> None:
    one = verdicts(tmp_path)
    one.path.parent.mkdir(parents=True)
    one.path.write_text('["x", {"fits": true}]\n')
    one, other = verdicts(tmp_path), verdicts(tmp_path)
    one.put("y", {"fits": True})
    assert other.get("y") is None and other.get("x") == {"fits": True}
    assert verdicts(tmp_path).get("y") == {"fits": True}
