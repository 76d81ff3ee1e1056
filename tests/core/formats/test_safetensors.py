"""The safetensors reader trusts no header: a false one is a ModelError with file and reason, never a crash."""

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from infeng_convert.safetensors_file import SafetensorsFile
from safetensors.numpy import save

from infeng_core.errors import ModelError
from infeng_core.formats.safetensors import read_header

GOOD = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}, {"format": "pt"})


def pack(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_files_of_the_safetensors_library_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    file = SafetensorsFile(path)
    assert file.header.metadata == {"format": "pt"}
    np.testing.assert_array_equal(file.array("a"), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert file.array("b").dtype == np.float16
    assert file.array("a").ctypes.data % 64 == 0


def test_a_tensor_at_an_odd_offset_is_still_readable(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {"pad": entry("U8", [1], [0, 1]), "x": entry("F32", [2], [1, 9])}
    path.write_bytes(pack(header, b"\0" + struct.pack("<2f", 1.5, 2.5)))
    array = SafetensorsFile(path).array("x")
    assert array.flags.aligned and array.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"\1\2\3", "3 bytes"),
        (GOOD[:40], "claims a header"),
        (GOOD[:-1], "beyond the end"),
        (GOOD + b"\0", "after the last tensor"),
        (pack({"x": entry()}, b"\0" * 8, length=1 << 40), "more than the limit"),
        (pack({"x": entry()}, b"\0" * 8, length=(1 << 64) - 1), "more than the limit"),
        (pack({"x": entry()}, b"\0" * 8, length=99_999_999), "claims a header"),
        (pack({"x": entry()}, b"\0" * 8, length=0), "does not start with"),
        (pack({"x": entry()}, b"\0" * 8, length=20), "not valid JSON"),
        (pack(b"[]"), "does not start with"),
        (pack(b'{"x": "\xff"}'), "UTF-8"),
        (pack(b'{"x": NaN}'), "NaN"),
        (pack(b'{"x":' * 100_000), "nested too deeply"),
        (pack(b'{"x":{"dtype":"F32","shape":[],"shape":[2],"data_offsets":[0,8]}}', b"\0" * 8), "given twice"),
        (
            pack(b'{"x":%b,"x":%b}' % ((json.dumps(entry()).encode(),) * 2), b"\0" * 8),
            "given twice",
        ),
        (pack({"__metadata__": {"a": 1}}), "__metadata__"),
        (pack({"__metadata__": 7}), "__metadata__"),
        (pack({"x": 3}), "exactly dtype"),
        (pack({"x": {"dtype": "F32", "shape": []}}), "exactly dtype"),
        (pack({"x": entry() | {"more": 1}}, b"\0" * 8), "exactly dtype"),
        (pack({"x": entry("F33")}, b"\0" * 8), "unknown dtype"),
        (pack({"x": entry(["F32"])}, b"\0" * 8), "unknown dtype"),
        (pack({"x": entry(shape=[-2])}, b"\0" * 8), "lists of sizes"),
        (pack({"x": entry(shape=[2.0])}, b"\0" * 8), "lists of sizes"),
        (pack({"x": entry(shape=[True, 2])}, b"\0" * 8), "lists of sizes"),
        (pack({"x": entry(shape="2")}, b"\0" * 8), "lists of sizes"),
        (pack({"x": entry(offsets=[0])}, b"\0" * 8), "lists of sizes"),
        (pack({"x": entry(offsets=[8, 0])}, b"\0" * 8), "before its begin"),
        (pack({"x": entry(offsets=[0, 4])}, b"\0" * 4), "span 4"),
        (pack({"x": entry("F16")}, b"\0" * 8), "4 bytes, but"),
        (pack({"x": entry("F64")}, b"\0" * 8), "16 bytes, but"),
        (pack({"x": entry("F4", [3], [0, 1])}, b"\0"), "but its data_offsets"),
        (pack({"x": entry(shape=[1 << 62, 1 << 62], offsets=[0, 1 << 70])}), "no file can have"),
        (pack({"x": entry(shape=[1 << 32, 1 << 32], offsets=[0, 0])}), "but its data_offsets"),
        (pack({"x": entry(offsets=[1 << 62, (1 << 62) + 8])}, b"\0" * 8), "beyond the end"),
        (pack({"x": entry(), "y": entry(offsets=[4, 12])}, b"\0" * 12), "overlaps"),
        (pack({"x": entry(), "y": entry()}, b"\0" * 8), "overlaps"),
        (pack({"x": entry(offsets=[4, 12])}, b"\0" * 12), "hole"),
        (pack({"x": entry(), "y": entry(offsets=[16, 24])}, b"\0" * 24), "hole"),
    ],
)
def test_an_inconsistent_header_is_an_error_that_names_the_file(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        SafetensorsFile(path)
    assert caught.value.what == str(path) and reason in caught.value.why and caught.value.remedy


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 99_000_000) + b"{")
    os.truncate(path, 99_000_100)
    tracemalloc.start()
    with pytest.raises(ModelError, match="claims a header of 99000000 bytes, more than the limit of 16777216"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.slow
def test_the_largest_header_costs_seconds_and_a_few_hundred_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = (f'"{i:06}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(290_000))
    path.write_bytes(pack(f"{{{','.join(names)}}}".encode()))
    code = """if True:
        import resource, sys, time
        from pathlib import Path
        from infeng_core.formats.safetensors import read_header
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(read_header(Path(sys.argv[1])).tensors) == 290_000
        print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    command = [sys.executable, "-P", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seconds, kilobytes = map(float, done.stdout.split())
    assert seconds < 30 and kilobytes < 600_000, done.stdout


@pytest.mark.parametrize("change", ["cut", "written", "replaced", "removed", "a pipe"])
def test_a_file_that_changes_after_it_was_opened_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    file = SafetensorsFile(path)
    if change == "cut":
        os.truncate(path, len(GOOD) - 2)
    elif change == "written":
        with path.open("r+b") as out:
            out.write(GOOD[:4])
        os.utime(path, ns=(1, 1))
    else:
        path.rename(tmp_path / "old")
        if change == "replaced":
            path.write_bytes(GOOD)
        elif change == "a pipe":
            os.mkfifo(path)
    with pytest.raises(ModelError) as caught:
        for name in file.tensors:
            file.array(name)
    assert caught.value.what == str(path) and caught.value.remedy


def test_a_dtype_that_is_no_float_is_refused_when_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"x": np.ones(4, np.int64)}))
    with pytest.raises(ModelError, match=r"tensor x is I64, weights must be F32, F16 or BF16"):
        SafetensorsFile(path).array("x")


def test_a_directory_or_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        SafetensorsFile(tmp_path / "absent.safetensors")


mutations = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=mutations, cut=st.integers(0, len(GOOD)), tail=st.binary(max_size=8))
@example(changes=[(8, 255)], cut=len(GOOD), tail=b"")
def test_no_mutation_of_a_file_does_worse_than_a_model_error(
    tmp_path: Path, changes: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    check_bytes(tmp_path, bytes(data[:cut]) + tail)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "U8", "F4", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 8), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), entries | json_values),
    size=st.integers(0, 48),
)
def test_no_header_does_worse_than_a_model_error(tmp_path: Path, header: dict[str, Any], size: int) -> None:
    check_bytes(tmp_path, pack(header, b"\0" * size))


def check_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzzed.safetensors"
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
        arrays = [file.array(name) for name, info in file.tensors.items() if info.dtype in ("F32", "F16", "U8")]
    except ModelError:
        return
    # What was accepted lies inside the file, without overlaps.
    assert sum(info.nbytes for info in file.tensors.values()) == len(data) - file.header.data_begin
    assert all(np.isfinite(array).size == array.size for array in arrays)
