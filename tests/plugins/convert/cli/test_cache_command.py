"""``infeng cache`` lists entries, removes old or excess ones, and touches nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
import tiny_model
from infeng_convert.atomic import locked
from infeng_convert.cache_entries import Entry, chosen

from infeng_core import cli
from infeng_core.engine import Engine

DAY = 86400.0
Infeng = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of one model, one adapter, verdicts, a segment of prefixes and files that are none of these."""
    folder = tmp_path_factory.mktemp("filled")
    root = folder / "cache"
    adapter = tiny_adapter.write(folder / "adapter", 1)
    for file in adapter.iterdir():
        os.utime(file, (1, 1))
    time.sleep(2.1)  # files that have just been written are packed anew each time
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(root))
        with Engine(tiny_model.write(folder / "model"), threads=1) as engine:
            engine.adapters.load("one", str(adapter), pin=True)
    (root / "plugins.json").unlink(missing_ok=True)  # what discovery remembers, where it is on
    prefixes = root / "prefixes"
    prefixes.mkdir(0o700)
    (prefixes / "0000000001.segment").write_bytes(b"infengPS" + bytes(56))
    (prefixes / "0000000001.index").write_bytes(bytes(10))
    (prefixes / "0000000002.segment").write_bytes(b"somebody else's")
    (root / "notes.txt").write_text("mine")
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the filled cache, three days old."""
    root = tmp_path / "cache"
    shutil.copytree(filled, root)
    monkeypatch.setenv("INFENG_CACHE", str(root))
    old = time.time() - 3 * DAY
    for path in [*root.rglob("*")]:
        os.utime(path, (old, old))
    return root


@pytest.fixture
def infeng(capsys: pytest.CaptureFixture[str]) -> Infeng:
    def run(*words: object) -> tuple[int, Any]:
        capsys.readouterr()
        status = cli.main(["cache", *(str(word) for word in words), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_list_has_every_entry_and_the_bytes_of_all_other_files(root: Path, infeng: Infeng, capsys: Any) -> None:
    status, found = infeng("list")
    assert status == 0 and found["path"] == str(root) and not found["skipped"]
    kinds = [entry["kind"] for entry in found["entries"]]
    assert set(kinds) == {"model", "adapter", "verdict", "prefix"} and kinds.count("prefix") == 1
    assert found["bytes"] + found["other_bytes"] == sum(path.stat().st_size for path in files(root))
    assert found["other_bytes"] == len(b"somebody else's") + len("mine")
    [prefix] = [entry for entry in found["entries"] if entry["kind"] == "prefix"]
    assert prefix["bytes"] == 64 + 10
    assert [entry["kind"] for entry in infeng("list", "--kind", "model")[1]["entries"]] == ["model"]
    assert cli.main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "packed adapters" in out and "      3d  " in out


def test_a_dry_run_removes_nothing_and_says_what_the_real_one_removes(root: Path, infeng: Infeng) -> None:
    before = files(root)
    _, would = infeng("prune", "--older-than", "2d", "--dry-run")
    assert files(root) == before and would["dry_run"] and len(would["removed"]) >= 4
    status, done = infeng("prune", "--older-than", "2d")
    assert status == 0 and done["removed"] == would["removed"] and done["bytes"] == would["bytes"] > 0
    assert files(root) == {root / "notes.txt", root / "prefixes" / "0000000002.segment"}


def test_entries_younger_than_the_age_stay(root: Path, infeng: Infeng) -> None:
    before = files(root)
    assert infeng("prune", "--older-than", "4d")[1]["removed"] == []
    assert files(root) == before


def test_a_size_removes_the_least_recently_used_entries() -> None:
    now = 10 * DAY
    entries = [Entry("model", Path(name), 10, used) for name, used in (("c", 3.0), ("a", 1.0), ("b", 2.0))]
    names = [entry.path.name for entry in chosen(entries, most=15, now=now)]
    assert names == ["a", "b"]
    assert [entry.path.name for entry in chosen(entries, most=0, now=now)] == ["a", "b", "c"]
    assert chosen(entries, most=30, now=now) == []
    assert chosen([Entry("model", Path("new"), 10, now - 60)], older=0, most=0, now=now) == []  # may be in use


def test_a_prune_without_a_bound_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(root)
    assert cli.main(["cache", "prune"]) == 2
    assert "give --older-than AGE, --max-size SIZE or both" in capsys.readouterr().err
    for words in (["--older-than", "30"], ["--max-size", "much"]):
        with pytest.raises(SystemExit):
            cli.main(["cache", "prune", *words])
    assert files(root) == before


def test_no_link_in_the_cache_is_followed(root: Path, infeng: Infeng, tmp_path: Path) -> None:
    outside = shutil.move(root / "models", tmp_path / "outside")
    (root / "models").symlink_to(outside)
    [adapter] = [path for path in (root / "adapters").iterdir() if path.is_dir()]
    elsewhere = shutil.move(adapter, tmp_path / "elsewhere")
    adapter.symlink_to(elsewhere)
    before = files(Path(outside)) | files(Path(elsewhere))
    _, done = infeng("prune", "--older-than", "0s")
    assert {entry["kind"] for entry in done["removed"]} == {"verdict", "prefix"}
    assert files(Path(outside)) | files(Path(elsewhere)) == before and adapter.is_symlink()
    assert infeng("list")[1]["skipped"] == dict.fromkeys(
        map(str, (root / "models", adapter)), "is a link, which is not followed"
    )


def test_an_entry_with_a_foreign_file_stays(root: Path, infeng: Infeng) -> None:
    [model] = [path for path in (root / "models").iterdir() if path.is_dir()]
    (model / "precious.txt").write_text("mine")
    os.utime(model, (1, 1))
    _, done = infeng("prune", "--older-than", "1d", "--kind", "model")
    assert done["removed"] == [] and (model / "precious.txt").exists()
    assert infeng("list")[1]["skipped"] == {str(model): "is not as it was written ('precious.txt')"}


def test_an_entry_in_use_by_another_process_stays(root: Path, infeng: Infeng) -> None:
    [model] = [path for path in (root / "models").iterdir() if path.is_dir()]
    segment = root / "prefixes" / "0000000001.segment"
    with locked(model), segment.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, done = infeng("prune", "--max-size", "0", "--kind", "model", "--kind", "prefix")
    assert status == 1 and done["removed"] == [] and model.is_dir() and segment.exists()
    assert done["failed"][str(segment)] == "another process writes it"
    assert "another process works on it" in done["failed"][str(model)]


def test_remains_of_an_interrupted_conversion_are_entries(root: Path, infeng: Infeng) -> None:
    leftover = root / "models" / f".{'0' * 32}.infeng-partial"
    leftover.mkdir()
    (leftover / "weights").write_bytes(bytes(100))
    os.utime(leftover, (1, 1))
    _, done = infeng("prune", "--older-than", "1w")
    assert [(entry["kind"], entry["bytes"]) for entry in done["removed"]] == [("leftover", 100)]
    assert not leftover.exists()


def test_an_empty_cache_is_no_error(infeng: Infeng, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path / "none"))
    assert infeng("list")[1]["entries"] == [] and infeng("prune", "--max-size", "0")[1]["removed"] == []
