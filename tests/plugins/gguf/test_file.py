"""GGUF headers: what is sound is read, and nothing that a file claims is believed before it is checked."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import gguf_parts as parts
import numpy as np
import pytest
from gguf_parts import Raw, info, string, text, u32
from infeng_gguf.file import GgufFile, files_of, is_gguf, open_files
from infeng_gguf.hub import GgufLocator

from infeng_core.errors import ModelError, UsageError

HUGE = 1 << 60


def test_metadata_and_tensors_agree_with_the_gguf_library(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("x.eps", 1e-5)
    writer.add_bool("x.flag", True)
    writer.add_array("x.names", ["a", "", "wörld"])
    writer.add_array("x.numbers", [1, -2, 3])
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("m", matrix)
    writer.add_tensor("h", matrix.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert (file.metadata["general.architecture"], file.metadata["llama.block_count"]) == ("llama", 7)
    assert file.metadata["x.flag"] is True and file.metadata["x.eps"] == float(np.float32(1e-5))
    assert file.strings("x.names") == ["a", "", "wörld"] and file.numbers("x.numbers").tolist() == [1, -2, 3]
    assert file.tensors["m"].shape == (3, 4) and file.tensors["h"].type.name == "F16"
    assert file.rows("m", 0, 3).view(np.float32).tolist() == matrix.tolist()
    assert file.rows("m", 2, 1).view(np.float32).tolist() == matrix[2:].tolist()


def test_a_file_of_version_2_is_read_like_version_3(tmp_path: Path) -> None:
    assert GgufFile(Raw(version=2).write(tmp_path / "a.gguf")).tensors.keys() == {"a", "b"}


def test_a_file_without_its_suffix_is_known_by_its_magic(tmp_path: Path) -> None:
    assert is_gguf(Raw().write(tmp_path / "blob"))
    assert not is_gguf(tmp_path) and not is_gguf(Raw(magic=b"GGML").write(tmp_path / "other"))


BROKEN = {
    "empty": (b"", "too few"),
    "another format": (Raw(magic=b"GGML"), "does not begin with GGUF"),
    "version 1": (Raw(version=1), "version 1"),
    "version 4": (Raw(version=4), "version 4"),
    "big-endian": (Raw(version=3 << 24), "big-endian"),
    "the 43 bytes that claim 2^60 entries": (Raw(entry_count=HUGE, infos=[], data=b"").bytes()[:43], "entries"),
    "2^60 tensors": (Raw(tensor_count=HUGE), "tensors"),
    "more entries than there are": (Raw(entry_count=3), "a text of|unknown type|ends in"),
    "more tensors than there are": (Raw(tensor_count=4), "a text of|dimensions|ends in"),
    "a key of 2^60 bytes": (Raw(entries=[struct.pack("<Q", HUGE)]), "a text of"),
    "a key without a name": (Raw(entries=[u32("", 1)]), "without a name"),
    "a key twice": (Raw(entries=[u32("a", 1), u32("a", 2)]), "twice"),
    "a key that is not UTF-8": (Raw(entries=[text(b"\xff\xfe") + struct.pack("<II", 4, 1)]), "not UTF-8"),
    "a value of 2^60 bytes": (Raw(entries=[text("a") + struct.pack("<IQ", 8, HUGE)]), "a text of"),
    "a value that is not UTF-8": (Raw(entries=[string("a", b"\xff")]), "not UTF-8"),
    "an unknown type": (Raw(entries=[text("a") + struct.pack("<II", 13, 1)]), "unknown type 13"),
    "a flag of 2": (Raw(entries=[text("a") + struct.pack("<IB", 7, 2)]), "neither true nor false"),
    "a list of lists": (Raw(entries=[text("a") + struct.pack("<IIQ", 9, 9, 1)]), "list of the unknown type 9"),
    "a list of 2^60 numbers": (Raw(entries=[text("a") + struct.pack("<IIQ", 9, 4, HUGE)]), "items"),
    "a list of 2^60 texts": (Raw(entries=[text("a") + struct.pack("<IIQ", 9, 8, HUGE)]), "items"),
    "a text in a list of 2^63 bytes": (
        Raw(entries=[text("a") + struct.pack("<IIQQ", 9, 8, 1, 1 << 63)]),
        "beyond the end",
    ),
    "no dimension": (Raw(infos=[info("a", ())]), "0 dimensions"),
    "five dimensions": (Raw(infos=[info("a", (1, 1, 1, 1, 1))]), "5 dimensions"),
    "2^32 - 1 dimensions": (Raw(infos=[info("a", (8,), count=2**32 - 1)]), "dimensions"),
    "an empty dimension": (Raw(infos=[info("a", (8, 0))]), "no tensor can be"),
    "sizes whose product is 2^64": (Raw(infos=[info("a", (1 << 32, 1 << 32))]), "no tensor can be"),
    "a size of 2^63": (Raw(infos=[info("a", (1 << 63,))]), "no tensor can be"),
    "an unknown tensor type": (Raw(infos=[info("a", (8,), kind=99)]), "unknown type 99"),
    "a type that was taken away": (Raw(infos=[info("a", (32,), kind=4)]), "unknown type 4"),
    "a row that is no whole block": (Raw(infos=[info("a", (33,), kind=8)]), "blocks of 32"),
    "a tensor twice": (Raw(infos=[info("a", (8,)), info("a", (8,), offset=32)]), "twice"),
    "a tensor's name of 2^60 bytes": (Raw(infos=[struct.pack("<Q", HUGE)]), "a text of"),
    "an offset off the alignment": (Raw(infos=[info("a", (4,), offset=4)]), "alignment"),
    "an offset of 2^64 - 32": (Raw(infos=[info("a", (4,), offset=(1 << 64) - 32)]), "the file at"),
    "tensors that overlap": (Raw(infos=[info("a", (16,)), info("b", (4,), offset=32)]), "overlaps"),
    "tensors on one another": (Raw(infos=[info("a", (4,)), info("b", (4,))]), "overlaps"),
    "a tensor beyond the end": (Raw(infos=[info("a", (1024,))]), "the file at"),
    "an alignment of 0": (Raw(entries=[u32("general.alignment", 0)]), "power of two"),
    "an alignment of 24": (Raw(entries=[u32("general.alignment", 24)]), "power of two"),
    "an alignment of 2^31": (Raw(entries=[u32("general.alignment", 1 << 31)]), "power of two"),
    "an alignment that is a text": (Raw(entries=[string("general.alignment", "32")]), "power of two"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    raw, why = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.bytes())
    tracemalloc.start()
    begin = time.thread_time()
    with pytest.raises(ModelError, match=why) as caught:
        GgufFile(path)
    assert time.thread_time() - begin < 1 and tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert str(path) in str(caught.value) and caught.value.remedy


def test_a_file_truncated_in_its_header_is_refused(tmp_path: Path) -> None:
    whole = Raw(entries=[parts.strings("a", ["b", "cd"]), u32("e", 1)]).bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            GgufFile(path)


def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path: Path) -> None:
    raw = Raw(entries=[text("a") + struct.pack("<IIQ", 9, 4, 1 << 37)], infos=[])
    path = raw.write(tmp_path / "huge.gguf")
    os.truncate(path, 1 << 40)
    with pytest.raises(ModelError, match="items"):
        GgufFile(path)
    path.write_bytes(raw.bytes()[:24] + bytes(64))
    os.truncate(path, 1 << 40)
    with pytest.raises(ModelError, match="without a name"):
        GgufFile(path)


def test_a_pipe_and_a_directory_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", tmp_path):
        with pytest.raises(ModelError, match="regular"):
            GgufFile(path)


def test_a_change_during_reading_is_an_error(tmp_path: Path) -> None:
    path = Raw().write(tmp_path / "a.gguf")
    file = GgufFile(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="changed while"):
        file.rows("a", 0, 1)


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(7)
    sound = Raw(entries=[parts.strings("a", ["b"] * 9), u32("e", 1), string("s", "text")]).bytes()
    path = tmp_path / "a.gguf"
    refused = 0
    for _ in range(200):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data) - 80)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(data)
        try:
            for tensor in GgufFile(path).tensors.values():
                assert tensor.begin + tensor.nbytes <= len(data)
        except ModelError:
            refused += 1
    assert 40 < refused < 200


def split(folder: Path, files: int, **changes: bytes) -> list[Path]:
    paths = []
    for number in range(files):
        entries = [
            changes.get(f"no_{number}", u32("split.no", number)),
            changes.get(f"count_{number}", changes.get("count", u32("split.count", files))),
            changes.get(f"total_{number}", changes.get("total", u32("split.tensors.count", files))),
            changes.get(f"more_{number}", b""),
        ]
        entries = [entry for entry in entries if entry]
        name = changes.get(f"name_{number}", b"t%d" % number)
        raw = Raw(entries=entries, infos=[info(name, (8,))], data=bytes(32))
        paths.append(raw.write(folder / f"m-{number + 1:05d}-of-{files:05d}.gguf"))
    return paths


def test_any_file_of_a_split_model_names_all_of_them(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    assert files_of(paths[1]) == paths
    assert [list(file.tensors) for file in open_files(paths[2])] == [["t0"], ["t1"], ["t2"]]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"count": u32("split.count", 2)}, "split.count is 2, not 3"),
        ({"count": b""}, "split.count is missing"),
        ({"count_2": b""}, "00003-of-00003.*split.count is missing"),
        ({"count_2": u32("split.count", 0)}, "split.count is 0"),
        ({"count_0": u32("split.count", 1 << 31)}, "from 0 to 4096"),
        ({"count_0": string("split.count", "3")}, "whole number"),
        ({"no_1": u32("split.no", 2)}, "split.no is 2, not 1"),
        ({"no_1": u32("split.no", 0)}, "split.no is 0, not 1"),
        ({"no_1": u32("split.no", 1 << 31)}, "from 0 to 4096"),
        ({"no_0": u32("split.no", 2), "no_2": u32("split.no", 0)}, "split.no is 2, not 0"),
        ({"total_2": u32("split.tensors.count", 2)}, "00003-of-00003.*split.tensors.count is 2"),
        ({"more_1": string("general.architecture", "llama")}, "general.architecture is another one"),
        (
            {
                "more_0": parts.strings("tokenizer.ggml.tokens", ["a", "b"]),
                "more_1": parts.strings("tokenizer.ggml.tokens", ["a", "c"]),
            },
            "00002-of-00003.*tokenizer.ggml.tokens is another one",
        ),
        ({"total": u32("split.tensors.count", 9)}, "split.tensors.count"),
        ({"name_1": b"t0"}, "in another file"),
    ],
)
def test_a_split_model_of_inconsistent_files_is_refused(tmp_path: Path, changes: dict[str, bytes], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        open_files(split(tmp_path, 3, **changes)[0])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_file_of_a_split_model_is_named(tmp_path: Path, number: int) -> None:
    paths = split(tmp_path, 3)
    paths[number].unlink()
    with pytest.raises(ModelError, match=f"0000{number + 1}-of-00003.*is missing"):
        open_files(paths[number - 1])


def test_metadata_repeated_in_a_split_model_must_agree(tmp_path: Path) -> None:
    same = [string("general.architecture", "llama"), parts.strings("tokenizer.ggml.tokens", ["a"])]
    paths = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for blocks in (2, 3):
        for number, path in enumerate(paths):
            entries = [u32("split.count", 2), *same, u32("llama.block_count", blocks if number else 2)]
            Raw(entries=entries, infos=[info(b"t%d" % number, (8,))], data=bytes(32)).write(path)
        if blocks == 2:
            assert len(open_files(paths[0])) == 2
    with pytest.raises(ModelError, match=r"00002-of-00002.gguf: llama.block_count is another one in m-00001"):
        open_files(paths[0])


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf"])
def test_a_number_that_no_file_of_a_split_model_has_is_refused(tmp_path: Path, name: str) -> None:
    paths = split(tmp_path, 3)
    paths[0].rename(tmp_path / name)
    with pytest.raises(ModelError, match=rf"{name}: calls itself number [04] of 3"):
        open_files(tmp_path / name)


def test_a_split_model_of_too_many_files_is_refused_before_opening_one(tmp_path: Path) -> None:
    path = Raw().write(tmp_path / "m-00001-of-99999.gguf")
    with pytest.raises(ModelError, match="one of 99999 files"):
        open_files(path)


def test_other_files_of_a_split_model_are_not_read_through_links_or_pipes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    paths = split(here, 3)
    paths[1].rename(there / "secret.gguf")
    paths[1].symlink_to(there / "secret.gguf")
    with pytest.raises(ModelError, match=r"00002-of-00003.gguf: is a link to .*secret.gguf"):
        open_files(paths[0])
    for put in (lambda: paths[1].symlink_to(paths[1].name), lambda: os.mkfifo(paths[1]), paths[1].mkdir):
        paths[1].unlink()
        put()
        with pytest.raises(ModelError, match="00002-of-00003"):
            open_files(paths[0])


def test_a_split_model_whose_files_are_links_into_one_folder_is_read(tmp_path: Path) -> None:
    """As a hub's cache has them: a snapshot of links into its blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(split(snapshot, 2)):
        path.rename(blobs / str(number))
        path.symlink_to(Path("..", "..", "blobs", str(number)))
    assert len(open_files(snapshot / "m-00001-of-00002.gguf")) == 2


def test_a_vocabulary_of_fifty_thousand_is_read_within_seconds(third_party: Path) -> None:
    path = third_party / "gguf-vocab" / "ggml-vocab-gpt-2.gguf"
    begin = time.process_time()
    tokens = GgufFile(path).strings("tokenizer.ggml.tokens")
    assert time.process_time() - begin < 0.5
    assert len(tokens) == 50257 and tokens[50256] == "<|endoftext|>"


def test_a_path_of_no_regular_file_is_named_as_such(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, why in (("pipe.gguf", "it is no regular file"), ("none.gguf", "no such file")):
        with pytest.raises(UsageError, match=rf"{name}: {why}: check the path of the GGUF file"):
            GgufLocator().locate(str(tmp_path / name), "model")
