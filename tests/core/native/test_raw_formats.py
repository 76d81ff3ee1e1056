"""Weight formats of libraries with groups of any size, minima and sub-scales; what their packing sees of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, random_rows, reference
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.formats.quant import LibraryFormat, MatrixContext

ROW = _native.ROW_GROUP
N, ROWS = 40, 5


@dataclass(frozen=True)
class Form:
    """A format of raw_formats.c: inputs of a group, and of a superblock."""

    name: str
    group: int
    superblock: int = 0
    has_minima: bool = False


FORMS = [
    Form("raw-g16", 16),
    Form("raw-g96", 96),
    Form("raw-row", ROW),
    Form("raw-g96-min", 96, has_minima=True),
    Form("raw-row-min", ROW, has_minima=True),
    Form("raw-s128-g32-min", 32, 128, has_minima=True),
    Form("raw-s192-g96", 96, 192),
    Form("raw-srow-g48-min", 48, ROW, has_minima=True),
]


@pytest.fixture(scope="module", name="library")
def fixture_library(build: Any) -> _native.Library:
    return _native.open_library(str(build("raw_formats.c")))


class Values:
    """Random values of a matrix (N, k) in a format, each by the input that it belongs to, and their panels."""

    def __init__(self, form: Form, k: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, padded = -(-N // 16) * 16, -(-k // 64) * 64
        inputs = np.arange(padded)
        self.form, self.k, self.step = form, k, int(np.gcd(form.group, 64))

        def shared(values: NDArray[Any], size: int) -> NDArray[Any]:
            """Repeat the value of each ``size`` inputs."""
            return values[:, inputs // size]

        most = padded // 16
        self.q = rng.integers(-100, 121, (rows, padded)).astype(np.int8)
        self.q[:, k:] = 0
        wide = form.superblock or form.group
        self.scale = shared(rng.standard_normal((rows, most)).astype(np.float32), wide)
        self.minimum = shared(rng.standard_normal((rows, most)).astype(np.float32), wide)
        self.s = shared(rng.integers(-255, 256, (rows, most)).astype(np.int16), form.group)
        self.t = shared(rng.integers(-255, 256, (rows, most)).astype(np.int16), form.group)

    def weight(self) -> _native.Weight:
        """Return the panels: per 64 inputs q, then lines of the four others by step."""
        panels = []
        for row in range(0, len(self.q), 16):
            for g in range(0, self.q.shape[1], 64):
                panels.append(self.q[row : row + 16, g : g + 64].T.tobytes())
                for values in (self.scale, self.minimum, self.s, self.t):
                    lines = np.zeros((4, 16), values.dtype)
                    steps = values[row : row + 16, g : g + 64 : self.step].T
                    superblock = self.form.superblock and values.dtype == np.float32
                    lines[: 1 if superblock else len(steps)] = steps[:1] if superblock else steps
                    panels.append(lines.tobytes())
        self.bytes = b"".join(panels)
        arena = _native.Arena(len(self.bytes), huge_pages=False)
        np.frombuffer(arena, np.uint8)[:] = np.frombuffer(self.bytes, np.uint8)
        each = _native.panel_bytes(self.form.name, self.k)
        assert each * -(-N // 16) == len(self.bytes)
        return _native.Weight(self.form.name, N, self.k, -(-N // 16), each, arena)

    def real(self) -> NDArray[np.float32]:
        """Return the weights as `embed` looks them up."""
        q = self.q.astype(np.int32)
        if self.form.superblock:
            values = self.scale * (self.s * q).astype(np.float32)
            values = values - self.minimum * self.t.astype(np.float32) if self.form.has_minima else values
        else:
            values = q.astype(np.float32) * self.scale
            values = values - self.minimum if self.form.has_minima else values
        return values[:N, : self.k]

    def linear(self, activation: model.Activation) -> NDArray[np.float32]:
        """Return the linear as docs/numerics.md has it, "Formats of libraries"."""
        q_x, scale_x, _ = activation
        out = np.zeros((len(q_x), len(self.q)), np.float32)
        a, b = np.zeros_like(out), np.zeros_like(out)
        padded = self.q.shape[1]
        for g in range(0, padded, 64):
            scale = scale_x[:, g // 64, None]
            acc = np.zeros(out.shape, np.int64)
            for first in range(g, g + 64, self.step):
                part = slice(first, first + self.step)
                y = -q_x[:, part].sum(axis=1, dtype=np.int32).astype(np.float32)[:, None] * scale
                products = q_x[:, part].astype(np.int64) @ self.q[:, part].astype(np.int64).T
                if self.form.superblock:
                    acc += products * self.s[None, :, first]
                    b = model.fma(self.t[None, :, first].astype(np.float32), y, b)
                    continue
                out = model.fma(products.astype(np.float32), self.scale[None, :, first] * scale, out)
                if self.form.has_minima:
                    out = model.fma(self.minimum[None, :, first], y, out)
            a = model.fma(acc.astype(np.float32), scale, a)
            if self.form.superblock and ((g + 64) % self.form.superblock == 0 or g + 64 == padded):
                out = model.fma(self.scale[None, :, g], a, out)
                out = model.fma(self.minimum[None, :, g], b, out) if self.form.has_minima else out
                a, b = np.zeros_like(out), np.zeros_like(out)
        return out[:, :N]


@pytest.mark.parametrize("k", [8, 64, 100, 200, 448])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_reference_multiplies_every_geometry_as_the_contract_says(library: Any, form: Form, k: int) -> None:
    values, x = Values(form, k, seed=k), random_rows(2, ROWS, k)
    problem = _native.Problem("linear", weight=form.name, act="int8-g64", n=48, k=k, rows=(ROWS, ROWS))
    op = OneOp(ROWS, threads=2)
    activation = model.quantize_rows(x)
    out = op.output(48)
    kernel = find_kernel(reference(), problem)
    op.program.linear(op.bind(kernel), values.weight(), op.input_activation(activation, k), out)
    op.run()
    assert kernel.name == "linear_foreign"
    assert op.result(out)[:, :N].tobytes() == values.linear(activation).tobytes()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_values_are_looked_up_and_unpacked_alike(library: Any, form: Form) -> None:
    values, k = Values(form, 200, seed=3), 200
    weight, op = values.weight(), OneOp(3)
    out = op.output(k)
    kernel = find_kernel(reference(), _native.Problem("embed", weight=form.name, n=48, k=k))
    op.program.embed(op.bind(kernel), weight, out)
    op.run([39, 0, 17])
    assert op.result(out).tobytes() == values.real()[[39, 0, 17]].tobytes()
    assert _native.unpack(form.name, values.bytes, 0, 3, k)[:N].tobytes() == values.real().tobytes()


@pytest.mark.parametrize("name", ["raw-g16", "raw-g96", "raw-row"])
def test_codes_that_others_choose_are_written_by_the_library_and_read_back(
    library: Any, expect: Any, name: str
) -> None:
    form, k = LibraryFormat(name, "int8-g64"), 200
    grid = form.grid(k)
    assert grid is not None
    assert (grid.low, grid.high, grid.scale, grid.sub) == (-100, 120, np.dtype(np.float16), None)
    assert grid.groups(k) == {"raw-g16": 13, "raw-g96": 3, "raw-row": 1}[name]
    rng = np.random.default_rng(5)
    codes = rng.integers(-100, 121, (N, k)).astype(np.int8)
    scales = rng.standard_normal((N, grid.groups(k))).astype(np.float32)
    panels = np.full(3 * form.panel_bytes(k), 255, np.uint8)
    form.pack_codes(codes, scales, panels)
    read = form.unpack_codes(panels, 0, 3, k)
    assert np.array_equal(read.codes[:N], codes)
    assert np.array_equal(read.scales[:N], scales)
    assert not read.codes[N:].any()
    real = codes.astype(np.float32) * scales[:, np.arange(k) // (grid.group if name != "raw-row" else k)]
    assert form.unpack(panels, 0, 3, k)[:N].tobytes() == real.tobytes()
    codes[7, 150] = 121
    with expect("out_of_range", "row 7, column 150: code 121 is outside of -100 to 120"):
        form.pack_codes(codes, scales, panels)


@pytest.mark.parametrize("form", [form for form in FORMS if form.has_minima or form.superblock], ids=lambda f: f.name)
def test_formats_with_minima_or_superblocks_have_no_grid_for_others(library: Any, form: Form) -> None:
    assert LibraryFormat(form.name, "int8-g64").grid(100) is None


def told(w: NDArray[Any], context: MatrixContext | None, threads: int = 1, **how: Any) -> NDArray[np.float32]:
    """Return what pack() wrote of each panel: (panels, 16 lanes, k)."""
    form, k = LibraryFormat("raw-told", "f32"), w.shape[1]
    panels = np.zeros(-(-len(w) // 16) * form.panel_bytes(k), np.uint8)
    form.pack(w, panels, context=context, threads=threads, **how)
    return form.unpack(panels, 0, -(-len(w) // 16), k).reshape(-1, 16, k)


def test_packing_sees_the_whole_matrix_and_its_context(library: Any) -> None:
    w, k = random_rows(6, 40, 70), 70
    moments = np.arange(k * k, dtype=np.float64).reshape(k, k)
    context = MatrixContext("layers.12.qkv_proj", "model.layers.12.self_attn.q_proj.weight", 3, moments)
    for threads in (1, 3):
        found = told(w, context, threads)
        words = [18, 39, 8]
        for panel, first in enumerate((0, 16, 32)):
            assert found[panel, 0, :6].tolist() == [12, 3, *words, k + 2]
            assert found[panel, 0, 6] == pytest.approx(w.sum(), rel=1e-4)
            assert found[panel, 0, 7:9].tolist() == [first, 1]
            assert found[panel, 1, 0] == w[first, 0]


def test_packing_without_context_says_that_nothing_is_known(library: Any) -> None:
    w = random_rows(7, 20, 64)
    for context in (None, MatrixContext()):
        assert told(w, context)[:, 0, :6].tolist() == [[-1] * 6] * 2
    head = MatrixContext("lm_head")
    assert (head.layer, head.role) == (None, "lm_head")
    assert told(w, head)[0, 0, :6].tolist() == [-1, -1, 7, -1, 7, -1]


def test_rows_may_lie_apart_and_shorter_floats_are_widened(library: Any) -> None:
    w = random_rows(8, 40, 140)
    apart = w[:, :70]
    assert np.array_equal(told(apart, None)[:, 1, 0], apart[::16, 0])
    half = apart.astype(np.float16)
    assert np.array_equal(told(half, None)[:, 1, 0], half[::16, 0].astype(np.float32))


def test_values_and_statistics_that_cannot_be_packed_are_named(library: Any, expect: Any) -> None:
    w = random_rows(9, 40, 70)
    with expect("invalid_argument", "the moments are no matrix"):
        told(w, MatrixContext(moments=np.zeros((70, 69))))
    with expect("not_finite", "weight format raw-told: 13 rows"):
        told(w[:13], None)
    w[33, 69] = np.inf
    with expect("not_finite", "row 33, column 69 is NaN or infinite"):
        told(w, None)
    with expect("unimplemented", "weight format raw-g16: its library cannot pack"):
        LibraryFormat("raw-g16", "int8-g64").pack(random_rows(1, 20, 64), np.zeros(1 << 16, np.uint8))
