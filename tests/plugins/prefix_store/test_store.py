"""Saved prefixes: what comes back is what was saved under the same tokens, or nothing, whatever the files hold."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn import examples
from engine_parts import MakeEngine, greedy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infeng_prefix_store import store as prefixes
from infeng_prefix_store.records import HEAD_BYTES, HEADER_BYTES, Kind
from infeng_prefix_store.store import DiskStore, Saved
from numpy.typing import NDArray

from infeng_core.backends.interface import BlockAccess
from infeng_core.errors import ResourceError
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.prefix import PrefixTree

KEY, OTHER = b"k" * 32, b"o" * 32
BLOCK = 40
STRIDE = Kind.of("", BLOCK).stride
LARGE = 1 << 20

CACHE = np.random.default_rng(1).integers(0, 256, (64, BLOCK), np.uint8)


def read_blocks(blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
    return CACHE[blocks]


def tokens_of(*pieces: int) -> NDArray[np.int32]:
    return np.repeat(np.array(pieces, np.int32), 16)


def open_store(directory: Path, most_bytes: int = LARGE, identity: str = "m", block: int = BLOCK) -> DiskStore:
    return DiskStore(directory, identity=identity, block_bytes=block, most_bytes=most_bytes)


class Kept:
    """A tree whose blocks are those of CACHE; ``expected`` are the bytes of each prefix."""

    def __init__(self) -> None:
        self.pool = BlockPool(len(CACHE))
        self.tree = PrefixTree(self.pool)

    def add(self, *pieces: int, key: bytes = KEY) -> None:
        known = self.tree.match(key, tokens_of(*pieces), LARGE)
        blocks = np.concatenate([known, self.pool.allocate(len(pieces) - len(known))])
        self.tree.insert(key, tokens_of(*pieces), blocks)
        self.pool.release(blocks)

    def expected(self, *pieces: int, key: bytes = KEY) -> NDArray[np.uint8]:
        blocks = self.tree.match(key, tokens_of(*pieces), LARGE)
        self.pool.release(blocks)
        return CACHE[blocks]


def load(store: DiskStore, found: list[Saved], block: int = BLOCK) -> NDArray[np.uint8]:
    """Load into the blocks of a cache that is as large as needed, last block first; return what is in them."""
    cache = np.zeros((len(found), block), np.uint8)

    def write_blocks(blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        cache[blocks] = data

    blocks = np.arange(len(found), dtype=np.int32)[::-1]
    return cache[blocks[: store.load(found, blocks, write_blocks)]]


def loaded(store: DiskStore, *pieces: int, key: bytes = KEY) -> NDArray[np.uint8]:
    return load(store, store.find(key, tokens_of(*pieces)))


@pytest.fixture
def kept() -> Kept:
    """Prefixes 1 2 3 and 1 4, and 1 2 under another key: six blocks."""
    kept = Kept()
    kept.add(1, 2, 3)
    kept.add(1, 4)
    kept.add(1, 2, key=OTHER)
    return kept


ALL = [((1, 2, 3), KEY), ((1, 4), KEY), ((1, 2), OTHER)]


def check_never_wrong(store: DiskStore, kept: Kept) -> int:
    """Assert that each prefix comes back as far as it comes back at all; return how many blocks that are."""
    count = 0
    for pieces, key in ALL:
        data, expected = loaded(store, *pieces, key=key), kept.expected(*pieces, key=key)
        assert np.array_equal(data, expected[: len(data)])
        count += len(data)
    return count


def test_another_process_finds_saved_blocks(tmp_path: Path, kept: Kept):
    assert open_store(tmp_path / "p").save(kept.tree.entries(), read_blocks) == 6
    store = open_store(tmp_path / "p")
    assert len(store) == 6
    for pieces, key in ALL:
        assert np.array_equal(loaded(store, *pieces, key=key), kept.expected(*pieces, key=key))
    assert (store.blocks_loaded, store.blocks_refused) == (7, 0)


def test_only_a_contiguous_prefix_from_the_first_token_on_is_found(tmp_path: Path, kept: Kept):
    store = open_store(tmp_path / "p")
    store.save(kept.tree.entries(), read_blocks)
    assert len(store.find(KEY, tokens_of(1, 2, 9, 3))) == 2
    assert len(store.find(KEY, tokens_of(2, 3))) == 0, "the same tokens elsewhere have other keys and values"
    assert len(store.find(OTHER, tokens_of(1, 4))) == 1
    assert len(store.find(KEY, tokens_of(1, 2, 3)[:47])) == 2
    assert len(store.find(KEY, np.empty(0, np.int32))) == 0


def test_blocks_already_in_memory_are_not_read(tmp_path: Path, kept: Kept):
    store = open_store(tmp_path / "p")
    store.save(kept.tree.entries(), read_blocks)
    found = store.find(KEY, tokens_of(1, 2, 3), begin=1)
    assert np.array_equal(load(store, found), kept.expected(1, 2, 3)[1:])
    assert store.find(KEY, tokens_of(1, 2, 3), begin=3) == []


def test_blocks_of_several_reads_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefixes, "READ_BYTES", 3 * STRIDE)
    kept = Kept()
    kept.add(*range(10))
    kept.add(*range(5), 50, 51)
    store = open_store(tmp_path / "p")
    store.save(kept.tree.entries(), read_blocks)
    for pieces in (range(10), (*range(5), 50, 51)):
        assert np.array_equal(loaded(store, *pieces), kept.expected(*pieces))


def test_only_new_blocks_are_written(tmp_path: Path, kept: Kept):
    asked = []

    def counting(blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        asked.extend(blocks.tolist())
        return read_blocks(blocks)

    store = open_store(tmp_path / "p")
    store.save(kept.tree.entries(), counting)
    assert store.save(kept.tree.entries(), counting) == 0
    kept.add(1, 2, 5)
    assert store.save(kept.tree.entries(), counting) == 1
    assert len(asked) == 7
    assert np.array_equal(loaded(open_store(tmp_path / "p"), 1, 2, 5), kept.expected(1, 2, 5))


def test_a_caller_may_save_in_slices(tmp_path: Path, kept: Kept):
    store = open_store(tmp_path / "p")
    counts = [store.save(kept.tree.entries(), read_blocks, most_blocks=n) for n in (0, 4, 4, 4)]
    assert counts == [0, 4, 2, 0]
    assert check_never_wrong(open_store(tmp_path / "p"), kept) == 7


def test_many_blocks_are_copied_out_of_the_cache_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefixes, "WRITE_BYTES", 5 * BLOCK)
    kept = Kept()
    kept.add(*range(33))
    sizes = []

    def counting(blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        sizes.append(len(blocks))
        return read_blocks(blocks)

    assert open_store(tmp_path / "p").save(kept.tree.entries(), counting) == 33
    assert sizes == [5, 5, 5, 5, 5, 5, 3]
    assert np.array_equal(loaded(open_store(tmp_path / "p"), *range(33)), kept.expected(*range(33)))


def test_a_restarted_process_appends_to_the_last_segment(tmp_path: Path):
    kept = Kept()
    for pieces in ((1,), (1, 2), (1, 2, 3)):
        kept.add(*pieces)
        store = open_store(tmp_path / "p")
        assert store.save(kept.tree.entries(), read_blocks) == 1
        store.close()
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["0000000001.index", "0000000001.segment"]
    assert np.array_equal(loaded(open_store(tmp_path / "p"), 1, 2, 3), kept.expected(1, 2, 3))


# ------------------------------------------------------------------------------------------------------- damage ---


@pytest.fixture
def files(tmp_path: Path, kept: Kept) -> Path:
    """A directory with all of ``kept``."""
    store = open_store(tmp_path / "p")
    store.save(kept.tree.entries(), read_blocks)
    store.close()
    return tmp_path / "p"


every_byte = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.nightly)])


@every_byte
@pytest.mark.parametrize(
    ("name", "has_index"), [("0000000001.segment", True), ("0000000001.segment", False), ("0000000001.index", True)]
)
def test_no_flipped_byte_gives_a_wrong_block(files: Path, kept: Kept, name: str, has_index: bool, every: int):
    path = files / name
    if not has_index:
        (files / "0000000001.index").unlink()
    whole = path.read_bytes()
    survived = 0
    offsets = range(0, len(whole), every)
    for offset in offsets:
        bits = (0x01, 0x80, 0xFF)[offset % 3]
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bits]) + whole[offset + 1 :])
        survived += check_never_wrong(open_store(files), kept)
    if path.suffix == ".index":
        assert survived == 7 * len(offsets), "the index only saves time"
    else:
        assert survived > 4 * len(offsets), "a flipped byte costs a record and those behind it on its path"


@every_byte
@pytest.mark.parametrize("name", ["0000000001.segment", "0000000001.index"])
def test_no_truncated_file_gives_a_wrong_block(files: Path, kept: Kept, name: str, every: int):
    whole = (files / name).read_bytes()
    counts = []
    for size in range(len(whole) - 1, -1, -every):
        (files / name).write_bytes(whole[:size])
        counts.append(check_never_wrong(open_store(files), kept))
    assert counts[0] == (7 if name.endswith("index") else 6)


def test_a_truncated_segment_gives_the_records_before_the_end(files: Path, kept: Kept):
    os.truncate(files / "0000000001.segment", HEADER_BYTES + 2 * STRIDE + 1)
    store = open_store(files)
    assert len(store) == 2
    assert check_never_wrong(store, kept) == 3


def test_a_partial_record_is_overwritten(files: Path, kept: Kept):
    size = HEADER_BYTES + 4 * STRIDE + 100
    os.truncate(files / "0000000001.segment", size)
    store = open_store(files)
    assert store.save(kept.tree.entries(), read_blocks) == 2
    assert (files / "0000000001.segment").stat().st_size == HEADER_BYTES + 6 * STRIDE
    assert check_never_wrong(open_store(files), kept) == 7


def test_a_file_that_shrinks_during_use_gives_no_blocks(files: Path, kept: Kept):
    store = open_store(files)
    os.truncate(files / "0000000001.segment", HEADER_BYTES + STRIDE)
    check_never_wrong(store, kept)
    (files / "0000000001.segment").unlink()
    assert check_never_wrong(store, kept) == 0


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gives_a_wrong_block(files: Path, kept: Kept, data: st.DataObject):
    source, copy = files, files.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    copy.chmod(0o700)
    for _ in range(data.draw(st.integers(1, 3))):
        path = copy / data.draw(st.sampled_from(["0000000001.segment", "0000000001.index", "0000000002.segment"]))
        old = path.read_bytes() if path.exists() else (copy / "0000000001.segment").read_bytes()
        a, b = sorted(data.draw(st.tuples(st.integers(0, len(old)), st.integers(0, len(old)))))
        slots = st.integers(0, 5).map(lambda slot: HEADER_BYTES + slot * STRIDE)
        kind = data.draw(st.sampled_from(["zeros", "cut", "noise", "move", "record", "head"]))
        if kind == "zeros":
            new = old[:a] + bytes(b - a) + old[b:]
        elif kind == "cut":
            new = old[:a] + old[b:]
        elif kind == "noise":
            new = old[:a] + data.draw(st.binary(max_size=64)) + old[a:]
        elif kind == "move":
            new = old[:a] + old[b:] + old[a:b]
        else:  # one record, or its head alone, in the place of another
            size = STRIDE if kind == "record" else HEAD_BYTES
            c, d = data.draw(slots), data.draw(slots)
            new = old[:c] + old[d : d + size] + old[c + size :]
        path.write_bytes(new)
    store = open_store(copy)
    check_never_wrong(store, kept)
    store.save(kept.tree.entries(), read_blocks)
    check_never_wrong(open_store(copy), kept)


def test_a_damaged_block_is_reported_once_and_saved_again(files: Path, kept: Kept, capsys: pytest.CaptureFixture[str]):
    with (files / "0000000001.segment").open("r+b") as file:
        file.seek(HEADER_BYTES + HEAD_BYTES + 7)
        file.write(b"?")
    store = open_store(files)
    assert len(loaded(store, 1, 2, 3)) == 0
    assert len(loaded(store, 1, 2, 3)) == 0
    assert capsys.readouterr().err.count("damaged record") == 1
    assert store.blocks_refused == 1
    assert store.save(kept.tree.entries(), read_blocks) == 1
    for seen in (store, open_store(files)):
        assert check_never_wrong(seen, kept) == 7
    assert capsys.readouterr().err == ""


def test_foreign_files_are_left_alone(files: Path, kept: Kept, capsys: pytest.CaptureFixture[str]):
    (files / "0000000002.segment").write_bytes(b"what is this")
    (files / "0000000003.segment").mkdir()
    os.mkfifo(files / "0000000004.segment")
    (files / "0000000005.segment").symlink_to(files / "0000000004.segment")
    (files / "notes.txt").write_text("mine")
    store = open_store(files)
    assert check_never_wrong(store, kept) == 7
    err = capsys.readouterr().err
    assert "file is not a segment of saved prefixes" in err
    assert err.count("saved prefixes cannot be read") == 3
    kept.add(7)
    assert store.save(kept.tree.entries(), read_blocks) == 1
    assert capsys.readouterr().err == ""
    store.clear()
    assert len(list(files.iterdir())) == 5
    assert (files / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("identity", "block"), [("n", BLOCK), ("m", BLOCK + 1), ("m", 8 * BLOCK)])
def test_blocks_of_another_identity_or_size_are_not_found(files: Path, kept: Kept, identity: str, block: int):
    store = open_store(files, identity=identity, block=block)
    assert len(store) == 0
    cache = np.full((64, block), 7, np.uint8)
    assert store.save(kept.tree.entries(), lambda blocks: cache[blocks]) == 6
    store = open_store(files, identity=identity, block=block)
    assert (load(store, store.find(KEY, tokens_of(1, 2, 3)), block) == 7).all()
    assert check_never_wrong(open_store(files), kept) == 7


# --------------------------------------------------------------------------------------------------- room, disk ---


def used(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.segment"))


def test_the_oldest_segments_are_evicted_first(tmp_path: Path):
    most = 16 * (HEADER_BYTES + 2 * STRIDE)
    kept = Kept()
    store = open_store(tmp_path / "p", most)
    for piece in range(60):
        kept.add(piece)
        assert store.save(kept.tree.entries(), read_blocks) >= 1
        assert used(tmp_path / "p") <= most
        kept.tree.clear()
    assert 28 <= len(store) <= 32
    for seen in (store, open_store(tmp_path / "p", most)):
        found = [len(seen.find(KEY, tokens_of(piece))) for piece in range(60)]
        assert found == [0] * (60 - len(store)) + [1] * len(store)
    assert len(list((tmp_path / "p").glob("*.index"))) <= 16


def test_a_cap_without_room_for_one_block_is_an_error(tmp_path: Path):
    with pytest.raises(ResourceError, match="do not hold one block of 40: allow it more"):
        open_store(tmp_path / "p", HEADER_BYTES + STRIDE - 1)
    kept = Kept()
    kept.add(1)
    assert open_store(tmp_path / "p", HEADER_BYTES + STRIDE).save(kept.tree.entries(), read_blocks) == 1


@pytest.mark.parametrize("after", [0, 1, 100, 300, 600])
def test_a_full_disk_loses_only_the_blocks_that_were_not_written(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after: int
):
    write, left = os.pwritev, [HEADER_BYTES + after]

    def full(handle: int, parts: list[memoryview], offset: int) -> int:
        data = b"".join(parts)[: left[0]]
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        return write(handle, [data], offset)

    store = open_store(tmp_path / "p")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert store.save(kept.tree.entries(), read_blocks) == 0
    assert "No space left" in capsys.readouterr().err
    assert used(tmp_path / "p") == HEADER_BYTES, "what is half written goes"
    assert check_never_wrong(store, kept) == 0
    assert store.save(kept.tree.entries(), read_blocks) == 6
    assert check_never_wrong(open_store(tmp_path / "p"), kept) == 7


def test_a_segment_whose_header_cannot_be_written_leaves_no_file(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(tmp_path / "p")
    monkeypatch.setattr(os, "pwritev", full)
    assert store.save(kept.tree.entries(), read_blocks) == 0
    assert list((tmp_path / "p").iterdir()) == []


def test_an_index_that_cannot_be_written_leaves_the_old_index(files: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (files / "0000000001.index").read_bytes()
    store = open_store(files)
    kept.add(7)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert store.save(kept.tree.entries(), read_blocks) == 1
    assert (files / "0000000001.index").read_bytes() == before
    assert len(list(files.iterdir())) == 2
    assert np.array_equal(loaded(open_store(files), 7), kept.expected(7)), "the segment itself says what it holds"
    (files / ".0000000001.index.infeng-partial").write_bytes(b"of a process that was killed")
    kept.add(8)
    assert store.save(kept.tree.entries(), read_blocks) == 1
    assert len((files / "0000000001.index").read_bytes()) == len(before) + 2 * HEAD_BYTES


def test_saved_files_are_readable_by_their_owner_alone(files: Path):
    assert files.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in sorted(files.iterdir())] == [0o600, 0o600]


def test_a_world_writable_directory_is_refused(files: Path):
    files.chmod(0o777)
    with pytest.raises(ResourceError, match="written by every user"):
        open_store(files)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be made"):
        open_store(tmp_path / "file" / "p")


def test_clear_removes_all_segments(files: Path, kept: Kept):
    store, other = open_store(files), open_store(files)
    store.clear()
    assert list(files.iterdir()) == []
    assert (len(store), check_never_wrong(other, kept)) == (0, 0)
    assert other.save(kept.tree.entries(), read_blocks) == 6
    store.refresh()
    assert check_never_wrong(store, kept) == 7


# ---------------------------------------------------------------------------------------------------- processes ---


def test_two_processes_that_save_at_once_write_to_separate_segments(tmp_path: Path, kept: Kept):
    first, second = open_store(tmp_path / "p"), open_store(tmp_path / "p")
    other = Kept()
    other.pool.allocate(30)
    other.add(7, 8)
    assert first.save(kept.tree.entries(), read_blocks) == 6
    assert second.save(other.tree.entries(), read_blocks) == 2
    kept.add(9)
    assert first.save(kept.tree.entries(), read_blocks) == 1
    assert {path.name for path in (tmp_path / "p").glob("*.segment")} == {"0000000001.segment", "0000000002.segment"}
    for store in (first, second, open_store(tmp_path / "p")):
        store.refresh()
        assert check_never_wrong(store, kept) == 7
        assert np.array_equal(loaded(store, 9), kept.expected(9))
        assert np.array_equal(loaded(store, 7, 8), other.expected(7, 8))


def test_blocks_that_another_process_saved_are_not_saved_twice(tmp_path: Path, kept: Kept):
    first, second = open_store(tmp_path / "p"), open_store(tmp_path / "p")
    first.save(kept.tree.entries(), read_blocks)
    assert second.save(kept.tree.entries(), read_blocks) == 0


def test_a_segment_with_a_writer_is_not_removed(tmp_path: Path):
    most = 16 * (HEADER_BYTES + STRIDE)
    first, second = open_store(tmp_path / "p", most), open_store(tmp_path / "p", most)
    one, many = Kept(), Kept()
    one.add(1)
    first.save(one.tree.entries(), read_blocks)
    many.add(*range(40, 64))
    second.save(many.tree.entries(), read_blocks)
    assert used(tmp_path / "p") <= most
    assert np.array_equal(loaded(first, 1), one.expected(1))


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from infeng_prefix_store.store import DiskStore
seed, directory = int(sys.argv[1]), Path(sys.argv[2])
cache = np.random.default_rng(seed).integers(0, 256, (200, 40), np.uint8)
cache[:, 0] = np.arange(200)
store = DiskStore(directory, identity="m", block_bytes=40, most_bytes=60 * 256 * 16)
for n in range(0, 200, 5):
    entries = [(b"k" * 32, 0, np.full(16, 1000 * seed + i, np.int32).tobytes(), (i,), ()) for i in range(n, n + 5)]
    store.save(entries, lambda blocks: cache[blocks])
    print(len(store), flush=True)
if seed % 2:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_killed_while_saving_do_not_damage_each_others_files(tmp_path: Path):
    runs = [
        subprocess.Popen([sys.executable, "-P", "-c", SCRIPT, str(seed), tmp_path / "p"], stdout=subprocess.DEVNULL)
        for seed in range(3)
    ]
    assert [run.wait(60) for run in runs] == [0, -9, 0]
    store = open_store(tmp_path / "p")
    assert len(store) == 600
    for seed in range(3):
        cache = np.random.default_rng(seed).integers(0, 256, (200, 40), np.uint8)
        cache[:, 0] = np.arange(200)
        for i in range(200):
            assert np.array_equal(loaded(store, 1000 * seed + i), cache[i : i + 1])
    assert store.blocks_refused == 0


# ------------------------------------------------------------------------------------------------------- engine ---


@pytest.mark.parametrize("kv", ["f32", "int8", "int8i", "k8v4h", "k8v4hi", "int4hi"])
def test_a_request_with_a_prefix_from_disk_gives_the_same_tokens(make_engine: MakeEngine, tmp_path: Path, kv: str):
    prompt = np.random.default_rng(3).integers(2, 300, 60).astype(np.int32)

    def opened() -> tuple[object, DiskStore, PrefixTree, BlockPool]:
        engine = make_engine(kv_cache__dtype=kv, kv_cache__memory="1MB")
        access = engine.executable
        assert isinstance(access, BlockAccess)
        nbytes = engine.executable.kv_bytes // engine.limits.kv_blocks
        identity = f"{engine.model.id} {access.block_layout()}"
        store = DiskStore(tmp_path / "p", identity=identity, block_bytes=nbytes, most_bytes=1 << 24)
        pool = BlockPool(engine.limits.kv_blocks)
        return access, store, PrefixTree(pool), pool

    access, store, tree, pool = opened()
    blocks = pool.allocate(5)
    expected = greedy(access, prompt.tolist(), 0, blocks.tolist(), 12)
    tree.insert(KEY, prompt, blocks)
    assert store.save(tree.entries(), access.read_blocks) == 3

    access, store, tree, pool = opened()
    pool.allocate(4)  # other blocks than before
    found = store.find(KEY, prompt)
    blocks = pool.allocate(5)
    assert store.load(found, blocks[: len(found)], access.write_blocks) == 3
    assert greedy(access, prompt.tolist(), 48, blocks.tolist(), 12) == expected
