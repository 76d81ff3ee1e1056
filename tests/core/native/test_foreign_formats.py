"""A library brings weight formats: packed, read and multiplied by its own kernel and by the reference's fallback."""

import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, packed, random_rows, reference

from infeng_core import _native
from infeng_core.formats.packing import packer

FLOATS, INTEGERS = "toy-f32", "toy-int8-g32"
N, K, ROWS = 40, 100, 5


@pytest.fixture(scope="module", name="library")
def fixture_library(build):
    return _native.open_library(str(build("foreign.c")))


def linear(kernel, form, x, w):
    op = OneOp(len(x), threads=2)
    source = op.input(x) if form != INTEGERS else op.input_activation(model.quantize_rows(x), x.shape[1])
    out = op.output(48)
    op.program.linear(op.bind(kernel), packed(form, w), source, out)
    op.run()
    return op.result(out)[:, : len(w)]


def test_formats_are_part_of_the_vocabulary_once_their_library_is_open(library):
    assert library.formats == [FLOATS, INTEGERS]
    assert _native.panel_bytes(FLOATS, 65) == 128 * 64
    assert _native.panel_bytes(INTEGERS, K) == 2 * 18 * 64
    assert packed(INTEGERS, random_rows(1, N, K)).format == INTEGERS
    assert _native.Problem("linear", weight=FLOATS).weight == FLOATS


def test_what_is_packed_is_unpacked_as_the_library_says(library):
    w = random_rows(2, N, K)
    for form, bound in ((FLOATS, 0), (INTEGERS, 1 / 254)):
        arena = _native.Arena(3 * _native.panel_bytes(form, K), huge_pages=False)
        packer().pack(form, w, arena)
        values = _native.unpack(form, arena, 0, 3, K)
        assert np.all(np.abs(values[:N] - w) <= np.abs(w).max(axis=1, keepdims=True) * bound * 1.001)
        assert not values[N:].any()


def test_the_library_s_kernel_and_the_reference_s_fallback_give_the_same_bytes(library):
    x, w = random_rows(3, ROWS, K), random_rows(4, N, K)
    problem = _native.Problem("linear", weight=FLOATS, act="f32", n=48, k=K, rows=(ROWS, ROWS))
    fallback = find_kernel(reference(), problem)
    assert (library.kernels[0].accepts(problem), fallback.name) == (True, "linear_foreign")
    expected = model.linear_float(x, w)
    assert linear(library.kernels[0], FLOATS, x, w).tobytes() == expected.tobytes()
    assert linear(fallback, FLOATS, x, w).tobytes() == expected.tobytes()


def test_the_fallback_multiplies_foreign_integers_as_the_contract_says(library):
    x, w = random_rows(5, ROWS, K), random_rows(6, N, K)
    problem = _native.Problem("linear", weight=INTEGERS, act="int8-g64", n=48, k=K, rows=(ROWS, ROWS))
    most = np.abs(np.pad(w, ((0, 0), (0, 28))).reshape(N, 4, 32)).max(axis=2)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    q = np.rint(np.pad(w, ((0, 0), (0, 28))).reshape(N, 4, 32) * inverse[:, :, None]).reshape(N, 128)
    expected = model.linear_int(model.quantize_rows(x), q.astype(np.int8), most / np.float32(127))
    assert linear(find_kernel(reference(), problem), INTEGERS, x, w).tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", [FLOATS, INTEGERS])
def test_embeddings_of_a_foreign_format_are_looked_up_by_the_fallback(library, form):
    w = random_rows(7, N, K)
    op = OneOp(3)
    out = op.output(K)
    kernel = find_kernel(reference(), _native.Problem("embed", weight=form, n=48, k=K))
    op.program.embed(op.bind(kernel), packed(form, w), out)
    op.run([39, 0, 17])
    arena = _native.Arena(3 * _native.panel_bytes(form, K), huge_pages=False)
    packer().pack(form, w, arena)
    assert np.array_equal(op.result(out), _native.unpack(form, arena, 0, 3, K)[[39, 0, 17]])


def test_an_error_of_the_library_s_packing_names_the_format_and_its_reason(library, expect):
    w = random_rows(8, N, K)
    w[20, 3] = 1e7
    with expect("out_of_range", f"row 16: weight format {INTEGERS}: 1e+07 is too large"):
        packed(INTEGERS, w)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("CLASH", f"weight format {INTEGERS}: another library brought one of this name with other panels"),
        ("BAD_NAME", "weight format int8-row: is the name of one of the core's own formats"),
        ("BAD_GROUP", f"weight format {INTEGERS}: reads activation 2 with 24 inputs for a scale"),
        ("BAD_SUPERBLOCK", f"weight format {INTEGERS}: has a superblock of 96 inputs over groups of 32"),
        ("BAD_INTEGERS", f"weight format {INTEGERS}: has integers from -127 to 200"),
        ("BAD_SCALE", f"weight format {INTEGERS}: has scales of type 3"),
        ("BAD_END", f"weight format {INTEGERS}: has one of the functions `begin` and `end`"),
        ("BAD_SIZE", "a weight format says that it has 88 bytes"),
        ("BAD_FUNCTION", f"weight format {FLOATS}: has no function `unpack`"),
    ],
)
def test_a_format_that_breaks_a_rule_refuses_the_library(library, build, expect, flag, text):
    with expect("bad_format", text):
        _native.open_library(str(build("foreign.c", f"-D{flag}")))


def test_two_libraries_with_one_format_share_its_name(library, build):
    other = _native.open_library(str(build("foreign.c", "-DANOTHER")))
    problem = _native.Problem("linear", weight=FLOATS, act="f32", n=48, k=K)
    assert other.kernels[0] != library.kernels[0]
    assert other.kernels[0].accepts(problem)
    assert library.kernels[0].accepts(problem)
