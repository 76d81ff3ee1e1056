"""A library describes an op over rows: it is registered, checked field by field, and runs in programs."""

from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

SOURCE = str(Path("..") / "kernels" / "data" / "own_op.c")
MALFORMED = {
    "SIZE": "op 0: it says that it has 16 bytes, this ABI knows 40",
    "HUGE": "op 0: it says that it has 1073741824 bytes",
    "NULL": "op 0: it is NULL",
    "NO_NAME": "op 0: it has no name of small letters",
    "NAME": "op 0: it has no name of small letters",
    "OWN": "op linear: it has the name of one of the engine's own ops",
    "EMPTY": "op blend: it has 0 operands, possible are 1 to 16",
    "MANY": "op blend: it has 17 operands",
    "NULL_OPERANDS": "op blend: it has 5 operands",
    "STRIDE": "op blend: its operands lie 8 bytes apart",
    "SMALL": "op blend: its arguments have 16 bytes",
    "LARGE": "op blend: its arguments have 1032 bytes",
    "OUTSIDE": "op blend: its weight at ",
    "FAR": "op blend: its weight at 4294967288 lies outside",
    "HEAD": "op blend: its x at 24 lies outside of the fields of its arguments, 40 to ",
    "MISALIGNED": "is not aligned to 4",
    "OVERLAP": "op blend: its other overlaps another operand",
    "OUT": "op blend: its out overlaps another operand",
    "FIRST": "op blend: its first operand, x, is not rows",
    "KIND": "op blend: its weight is of kind 9, which is unknown",
    "INDICES": "op blend: it has two row indices",
    "SAME": "op blend: two operands are called x",
    "OPERAND": "op blend: operand 2 has no name",
    "INFINITE": "op blend: its factor has no finite value",
}


@pytest.fixture(scope="module", name="library")
def fixture_library(build):
    return _native.open_library(str(build(SOURCE)))


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_op_costs_itself_and_its_kernels(build, case):
    library = _native.open_library(str(build(SOURCE, f"-DCASE_{case}")))
    assert [kernel.name for kernel in library.kernels] == ["usual"]
    assert library.ops == []
    fault, *left_out = library.faults
    assert MALFORMED[case] in fault
    name = fault.partition(":")[0]
    assert left_out == [f"kernel {each}: its {name} cannot be used" for each in ("blend_plain", "blend_fast")]


@pytest.mark.parametrize(("case", "text"), [("COUNT", "has -1 entries"), ("NO_LIST", "has 1 entries")])
def test_a_library_whose_list_of_ops_is_broken_loses_the_list(build, case, text):
    library = _native.open_library(str(build(SOURCE, f"-DCASE_{case}")))
    assert [kernel.name for kernel in library.kernels] == ["usual"]
    assert text in library.faults[0]
    assert library.unknown == ["op 65536 of kernel blend_plain", "op 65536 of kernel blend_fast"]


def test_a_kernel_of_an_op_beyond_the_list_is_of_an_unknown_op(build, library):
    other = _native.open_library(str(build(SOURCE, "-DCASE_BEYOND")))
    assert [kernel.name for kernel in other.kernels] == ["usual", "blend_plain"]
    assert other.unknown == ["op 65537 of kernel blend_fast"]


def test_an_op_that_is_listed_twice_counts_once(build, library):
    other = _native.open_library(str(build(SOURCE, "-DCASE_TWICE")))
    assert (other.ops, other.faults) == (["blend"], ["op blend: it is listed twice"])
    assert [kernel.op for kernel in other.kernels] == ["epilogue", "blend", "blend"]


def test_libraries_share_an_op_that_they_describe_alike(build, library):
    other = _native.open_library(str(build(SOURCE, "-DPRIORITY=9")))
    assert other.ops == library.ops == ["blend"]
    problem = _native.Problem("blend", n=64, k=64)
    assert all(kernel.accepts(problem) for one in (library, other) for kernel in one.kernels[1:])


def test_a_library_that_describes_an_op_otherwise_loses_it(build, library):
    other = _native.open_library(str(build(SOURCE, "-DCASE_OTHERWISE")))
    assert (other.ops, [kernel.name for kernel in other.kernels]) == ([], ["usual"])
    assert other.faults[0] == "op blend: another library describes an op of this name otherwise"


def test_the_op_is_part_of_the_vocabulary_with_its_operands(library, expect):
    assert "blend" not in _native.OPS
    found = _native.row_ops()["blend"]
    assert [(one.name, one.kind) for one in found] == [
        ("x", "rows"),
        ("row_index", "row_index"),
        ("other", "rows"),
        ("weight", "vector"),
        ("factor", "scalar"),
    ]
    assert found[4].value == 0.5
    assert _native.Problem("blend", n=64, k=64).op == "blend"
    with expect("unknown_name", ", blend"):
        _native.Problem("blur")


class Blended:
    """A program of the op."""

    def __init__(self, kernel: _native.Kernel, columns: int, *, gather: bool) -> None:
        self.program = _native.Program(_native.Pool(2), max_rows=6, max_samples=6, max_segments=1, context=6)
        random = np.random.default_rng(columns)
        self.x, self.other = (random.standard_normal((6, columns), np.float32) for _ in range(2))
        self.weight = random.standard_normal(columns, np.float32)
        self.buffers = [self.program.buffer(columns), self.program.buffer(columns, samples=gather)]
        self.out = self.program.buffer(columns, samples=gather)
        operands = {"x": self.buffers[0], "other": self.buffers[1], "weight": self.weight, "factor": 2.5}
        self.program.row_op("blend", [(6, kernel)], columns, self.out, operands=operands, gather_samples=gather)
        self.program.finish()

    def run(self, samples: list[int]) -> np.ndarray:
        for buffer, values in zip(self.buffers, (self.x, self.other), strict=True):
            self.program.view(buffer)[:] = values
        none, rows = np.zeros(0, np.int32), np.arange(6, dtype=np.int32)
        self.program.run(rows, rows, np.zeros((0, 4), np.int32), none, np.array(samples, np.int32))
        return self.program.view(self.out)


@pytest.mark.parametrize("columns", [1, 40, 64, 2048])
def test_the_op_runs_over_rows_and_over_sampled_rows(library, columns):
    for kernel in library.kernels[1:]:
        made = Blended(kernel, columns, gather=False)
        expected = made.x * made.weight * np.float32(2.5) + made.other
        assert made.run([]).tobytes() == expected.tobytes()
        made, rows = Blended(kernel, columns, gather=True), [4, 0, 4]
        expected = made.x[rows] * made.weight * np.float32(2.5) + made.other[:3]
        assert made.run(rows)[:3].tobytes() == expected.tobytes()


def test_the_op_gets_exactly_its_operands(library, expect):
    kernels = [(6, library.kernels[1])]
    program = _native.Program(_native.Pool(1), max_rows=6, max_samples=6, max_segments=1, context=6)
    x, other, out, wide = (program.buffer(columns) for columns in (64, 64, 64, 128))
    operands = {"x": x, "other": other, "weight": np.ones(64, np.float32), "factor": 1.0}
    for changes, text in (
        ({"weight": np.ones(32, np.float32)}, "weight has 32 values, the op needs 64"),
        ({"other": wide}, "has 128 columns, the op needs 64"),
        ({"other": 99}, "there is no buffer 99"),
        ({"more": 1.0}, "blend: has no operand more"),
        ({"row_index": 1}, "blend: has no operand row_index"),
        ({"other": out}, "is both input and output"),
    ):
        with expect("invalid_argument", text):
            program.row_op("blend", kernels, 64, out, operands=operands | changes)
    with expect("invalid_argument", "blend: has 4 operands"):
        program.row_op("blend", kernels, 64, out, operands={"x": x})
    with expect("invalid_argument", "is a kernel for epilogue, not for blend"):
        program.row_op("blend", [(6, library.kernels[0])], 64, out, operands=operands)
    program.row_op("blend", kernels, 64, out, operands=operands)
