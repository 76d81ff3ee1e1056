"""Folders of adapters: known by name, read when they are asked for, and trusted no more than other files."""

from __future__ import annotations

import os
import random
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from adapter_parts import Store, info, resident, start
from infeng_peft.folders import AdapterFolders

from infeng_core.adapters.named import NamedAdapters
from infeng_core.adapters.registry import Registry
from infeng_core.errors import AdapterError, RequestError, UsageError

Make = Callable[..., Registry]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three adapters, with what is none beside them."""
    made = tmp_path / "adapters"
    for name in ("a", "b", "c.d-e_1"):
        (made / name).mkdir(parents=True)
    (made / "README.md").write_text("# none")
    (made / ".hidden").mkdir()
    return made


def source(folder: Path, name: str) -> str:
    return str(folder / name)


# ------------------------------------------------------------------------------------------------------- lookups ---


def test_subfolders_are_adapters_by_their_names_and_files_are_none(folder: Path) -> None:
    directory = AdapterFolders([str(folder)])
    assert directory.names() == ["a", "b", "c.d-e_1"]
    assert directory.find("a") == source(folder, "a")
    for name in ("README.md", ".hidden", "nobody", "", ".", "..", "a/../b", "a/", "/", "a\0", "x" * 129, "x" * 5000):
        assert directory.find(name) is None, name


def test_nothing_is_listed_until_somebody_lists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(*_: object) -> NoReturn:
        raise AssertionError("a folder was listed")

    monkeypatch.setattr(os, "scandir", deaf)
    directory = AdapterFolders([str(folder)])
    assert directory.find("b") == source(folder, "b")


def test_the_earlier_place_counts_and_hub_names_have_their_last_part(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "a").mkdir(parents=True)
    (other / "z").mkdir()
    directory = AdapterFolders([str(folder), str(other), "org/judge@v2", "team/z"])
    assert directory.find("a") == source(folder, "a")
    assert directory.find("z") == source(other, "z")
    assert directory.find("judge") == "org/judge@v2"
    assert directory.names() == ["a", "b", "c.d-e_1", "judge", "z"]
    assert directory.names("b", 2) == ["c.d-e_1", "judge"]
    assert directory.names("z") == []


@pytest.mark.parametrize(
    ("places", "why"),
    [
        (["/nowhere/at/all"], "is not there"),
        (["{folder}/README.md"], "is no folder"),
        (["{folder}/pipe"], "is no folder"),
        (["no\0where"], "is no"),
        (["org/judge", "team/judge"], "org/judge has the same name"),
        (["{folder}/open"], "may be written by every user"),
    ],
)
def test_a_place_that_cannot_be_used_is_an_error_at_the_start(folder: Path, places: list[str], why: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    with pytest.raises(AdapterError, match=why):
        AdapterFolders([place.format(folder=folder) for place in places])


def test_what_is_no_folder_of_our_own_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (tmp_path / "secret").mkdir()
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("../adapters/../secret")
    (folder / "self").symlink_to(folder)
    (folder / "loop").symlink_to("loop")
    (folder / "alias").symlink_to("a")
    (folder / "nowhere").symlink_to("gone")
    directory = AdapterFolders([str(folder)])
    for name, why in {
        "pipe": "is a pipe or a device",
        "open": "may be written by every user",
        "out": "is a link that leads out",
        "up": "is a link that leads out",
        "self": "is a link that leads out",
    }.items():
        with pytest.raises(AdapterError, match=rf"adapter {name}: .*{why}") as caught:
            directory.find(name)
        assert str(tmp_path) not in str(caught.value), "paths of the server stay secret"
    with pytest.raises(AdapterError, match="adapter loop: it cannot be looked at"):
        directory.find("loop")
    assert directory.find("alias") == source(folder, "alias")
    assert directory.find("nowhere") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_folder_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder / "a", 12345, 12345)
    directory = AdapterFolders([str(folder)])
    with pytest.raises(AdapterError, match=r"adapter a: .*belongs to another user"):
        directory.find("a")
    os.chown(folder, 12345, 12345)
    with pytest.raises(AdapterError, match="belongs to another user"):
        AdapterFolders([str(folder)])


# ------------------------------------------------------------------------------------------------------- listing ---


def test_strange_names_are_neither_listed_nor_found(folder: Path) -> None:
    strange = [b"\xff\xfe", b"line\nbreak", b"a b", b"-dash", "e\u0301".encode(), b"x,y", b"\x1b[31m", b"q" * 200]
    for name in strange:
        (folder / os.fsdecode(name)).mkdir()
    (folder / "größe").mkdir()
    directory = AdapterFolders([str(folder)])
    assert directory.names() == ["a", "b", "c.d-e_1", "größe"]
    assert not any(directory.find(os.fsdecode(name)) for name in strange)


def test_new_and_removed_folders_are_seen(folder: Path) -> None:
    directory = AdapterFolders([str(folder)])
    assert "new" not in directory.names()
    (folder / "new").mkdir()
    (folder / "a").rmdir()
    assert directory.names() == ["b", "c.d-e_1", "new"]
    assert (directory.find("new"), directory.find("a")) == (source(folder, "new"), None)
    folder.rename(folder.with_name("moved"))
    assert (directory.names(), directory.find("b")) == ([], None)


def test_an_unchanged_folder_is_listed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(folder, (1, 1))
    directory = AdapterFolders([str(folder)])
    found = directory.names()
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("it was listed again"))
    assert directory.names() == found


def test_a_folder_that_changes_while_it_is_listed_gives_sorted_names(folder: Path) -> None:
    directory = AdapterFolders([str(folder)])
    is_over = threading.Event()

    def change() -> None:
        rng = random.Random(1)
        while not is_over.is_set():
            path = folder / f"n{rng.randrange(50)}"
            if path.exists():
                path.rmdir()
            else:
                path.mkdir()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            names = directory.names()
            assert names == sorted(set(names)) and {"a", "b"} <= set(names)
            directory.find(f"n{len(names) % 50}")
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_thousands_of_names_are_paged_and_cost_few_bytes(count: int, tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        for number in range(count):
            os.mkdir(f"n{number:06}", dir_fd=handle)
    finally:
        os.close(handle)
    directory = AdapterFolders([str(tmp_path)])
    assert directory.find(f"n{count - 1:06}") == str(tmp_path / f"n{count - 1:06}")
    tracemalloc.start()
    try:
        assert len(directory.names()) == 1000
        assert tracemalloc.get_traced_memory()[0] < 200 * count
    finally:
        tracemalloc.stop()
    assert directory.names("n000999", 2) == ["n001000", "n001001"]
    assert directory.names(f"n{count - 2:06}", 5) == [f"n{count - 1:06}"]


def test_a_longer_folder_is_listed_in_part_and_found_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infeng_peft.folders.MOST_LISTED", 2)
    directory = AdapterFolders([str(folder)])
    assert len(directory.names()) <= 2
    assert all(directory.find(name) for name in ("a", "b", "c.d-e_1"))


# ------------------------------------------------------------------------------------------------- in a registry ---


def registry_of(make: Make, folder: Path, **more: Any) -> Registry:
    return make(directory=AdapterFolders([str(folder)]), **more)


def test_a_request_finds_an_adapter_that_nobody_added(make: Make, store: Store, folder: Path) -> None:
    registry = registry_of(make, folder)
    assert (registry.infos(), store.reads) == ([], [])
    assert registry.info("a").state == "registered"
    assert registry.infos() == [], "looking at it remembers nothing"
    start(registry, "a").close()
    assert store.reads == [source(folder, "a")]
    assert [(one.name, one.state) for one in registry.infos()] == [("a", "resident")]
    (folder / "late").mkdir()
    start(registry, (("late", 0.5), ("b", 1.0))).close()
    assert resident(registry) == ["a", "late", "b"]
    with pytest.raises(RequestError, match="no adapter of that name"):
        registry.refer("nobody")


def test_a_removed_adapter_says_so_once_and_one_in_its_place_is_new(make: Make, store: Store, folder: Path) -> None:
    registry = registry_of(make, folder)
    running = start(registry, "a")
    (folder / "a").rmdir()
    with pytest.raises(RequestError, match=r"adapter a: it has been removed from adapters\.directory"):
        registry.refer("a")
    assert running.rows, "a running request keeps it"
    running.close()
    with pytest.raises(RequestError, match="no adapter of that name"):
        registry.refer("a")
    (folder / "a").mkdir()
    store.contents[source(folder, "a")] = b"others"
    start(registry, "a").close()
    assert info(registry, "a").loads == 1


def test_an_adapter_that_was_replaced_is_an_error_until_it_is_reloaded(make: Make, store: Store, folder: Path) -> None:
    registry = registry_of(make, folder, most=1)
    start(registry, "a").close()
    start(registry, "b").close()
    store.contents[source(folder, "a")] = b"others"
    with pytest.raises(AdapterError, match="its files have changed since they were first read: reload it"):
        start(registry, "a")
    registry.reload("a")
    start(registry, "a").close()


def test_added_names_and_those_of_the_folder_are_kept_apart(make: Make, folder: Path) -> None:
    registry = registry_of(make, folder, base=frozenset({"base", "b"}))
    with pytest.raises(AdapterError, match=r"adapter a: adapters\.directory has one of that name"):
        registry.add("a", "org/a")
    registry.add("mine", "org/mine")
    (folder / "mine").mkdir()
    assert registry.info("mine").source == "org/mine"
    assert (registry.has("mine"), registry.is_available("mine"), registry.is_available("a")) == (True, False, True)
    assert "b" not in registry.available(), "it means the base"
    with pytest.raises(RequestError):
        registry.refer("b")


def test_one_of_the_folder_can_be_pinned_and_unloaded(make: Make, store: Store, folder: Path) -> None:
    registry = registry_of(make, folder, most=1)
    registry.pin("a")
    assert (resident(registry), info(registry, "a").pinned) == (["a"], True)
    registry.pin("a", False)
    start(registry, "b").close()
    assert resident(registry) == ["b"]
    registry.remove("b")
    assert (resident(registry), store.placed) == ([], 0)
    start(registry, "b").close()
    assert info(registry, "b").loads == 1, "it is known again, as if it were new"


def test_the_folder_may_be_a_link_that_is_switched(make: Make, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(folder)
    (folder / "alias").symlink_to("a")
    directory = AdapterFolders([str(link)])
    assert directory.find("alias")
    other = shutil.copytree(folder, tmp_path / "next", symlinks=True)
    link.unlink()
    link.symlink_to(other)
    assert directory.find("alias") and "alias" in directory.names()


def test_wrong_types_are_errors(make: Make, folder: Path) -> None:
    registry = registry_of(make, folder)
    names: Any = NamedAdapters(registry, lambda: None)
    assert [1] not in names and not names.is_available(None)
    for act in (lambda: names[["a"]], lambda: names.pin(5), lambda: names.reload(None), lambda: names.unload(b"a")):
        with pytest.raises(AdapterError, match="not a text"):
            act()
    for act in (lambda: names.available(5), lambda: names.available("", -1), lambda: names.infos("x")):
        with pytest.raises(UsageError):
            act()


def test_a_refused_folder_fails_its_request_alone(make: Make, folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to(tmp_path)
    registry = registry_of(make, folder)
    for act in (registry.refer, registry.check):
        with pytest.raises(RequestError, match=r"adapter out: .*a link that leads out"):
            act("out")
    with pytest.raises(AdapterError, match="a link that leads out"):
        registry.pin("out")
    start(registry, "a").close()


class Unlisted(dict[str, Any]):
    """Names that nobody may go through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a step went through all names")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_requests_go_through_no_list_of_names(make: Make, folder: Path) -> None:
    registry = registry_of(make, folder, most=2)
    for name in ("a", "b"):
        start(registry, name).close()
    registry._entries = Unlisted(registry._entries)
    for name in ("c.d-e_1", "a", "b", "a"):
        start(registry, name).close()
    registry.pin("b")
    assert registry.totals().names == 3
    registry._entries = dict(dict.items(registry._entries))


def test_a_name_that_was_asked_for_costs_less_than_a_kilobyte(make: Make, tmp_path: Path) -> None:
    count = 2000
    for number in range(count):
        (tmp_path / f"name-of-{number}").mkdir()
    registry = registry_of(make, tmp_path)
    tracemalloc.start()
    try:
        for number in range(count):
            registry.check(f"name-of-{number}")
        assert tracemalloc.get_traced_memory()[0] < 1000 * count
    finally:
        tracemalloc.stop()


def test_the_totals_count_all_names(make: Make, folder: Path) -> None:
    registry = registry_of(make, folder, most=2)
    for name in ("a", "b", "c.d-e_1", "a"):
        start(registry, name).close()
    totals = registry.totals()
    assert (totals.names, totals.resident, totals.loads) == (3, 2, 4)
    assert totals.load_seconds == pytest.approx(sum(one.total_load_seconds for one in registry.infos()))
    assert [one.name for one in registry.infos(2)] == ["a", "b"]
