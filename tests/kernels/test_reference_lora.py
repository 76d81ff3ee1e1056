"""LoRA: shrink and its epilogue, per segment of rows; segments may be empty, overlap and hold any storage type."""

import ctypes as c
from pathlib import Path

import numpy as np
import pytest
from kernels import abi_mirror as abi
from kernels import adapters, model
from kernels.adapters import STORED, Adapter, K, N
from kernels.harness import random_rows

import infeng_core

KERNELS = abi.open_kernels(str(Path(infeng_core.__file__).parent / "libinfeng_reference.so"))
ROWS = 7


def shrink(x: np.ndarray, segments: list[abi.LoraSegment], columns: int, **how: object) -> np.ndarray:
    return adapters.shrink(KERNELS["shrink_f32"], x, segments, columns, **how)


def add_lora(cur: np.ndarray, u: np.ndarray, segments: list[abi.LoraSegment]) -> np.ndarray:
    out = np.full_like(cur, -7.0)
    array = (abi.LoraSegment * max(len(segments), 1))(*segments)
    step = abi.LoraEpilogue(abi.Epilogue(c.sizeof(abi.LoraEpilogue), abi.LORA), abi.tensor(u))
    step.segments, step.segment_count, step.segment_stride = array, len(segments), c.sizeof(abi.LoraSegment)
    args = abi.EpilogueArgs(input=abi.tensor(cur), out=abi.tensor(out))
    args.common = abi.Args(c.sizeof(args), 1, None, abi.steps(step), len(cur))
    assert abi.run(KERNELS["epilogue"], args) == (0, "")
    return out


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("rank", [1, 8, 16, 24])
def test_shrink_and_expand_equal_the_model_for_every_storage_type(dtype: str, rank: int) -> None:
    x, cur = random_rows(1, ROWS, K), random_rows(2, ROWS, N)
    adapter = Adapter(dtype, rank, seed=3)
    segments = [adapter.segment(2, 6)]
    u = shrink(x, segments, 32)
    expected = adapter.shrunk(x[2:6])
    assert np.array_equal(u[2:6, :rank], expected)
    assert not u[2:6, rank : -(-rank // 16) * 16].any()
    assert np.all(u[[0, 1, 6]] == -7.0)
    out = add_lora(cur, u, segments)
    assert np.array_equal(out[2:6], adapter.added(cur[2:6], expected))
    assert np.array_equal(out[[0, 1, 6]], cur[[0, 1, 6]])
    if dtype == "f32":
        truth = (x[2:6].astype(np.float64) @ adapter.a.T.astype(np.float64)) * adapter.scaling[:rank]
        assert np.allclose(expected, truth, rtol=0, atol=1e-5 * np.abs(truth).max())


def test_overlapping_segments_combine_adapters_in_their_order() -> None:
    x, cur = random_rows(4, ROWS, K), random_rows(5, ROWS, N)
    first, second = Adapter("f32", 8, seed=6), Adapter("int8", 16, seed=8, u_column=16, weight=2.0)
    segments = [first.segment(0, 5), second.segment(3, 7), first.segment(6, 6)]
    u = shrink(x, segments, 32)
    out = add_lora(cur, u, segments)
    expected = cur.copy()
    expected[:5] = first.added(expected[:5], first.shrunk(x[:5]))
    expected[3:] = second.added(expected[3:], second.shrunk(x[3:]))
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("panels", [(0, 2, 3), (1, 2, 2), (3, 1, 2), (4, 1, 1)])
def test_a_segment_scales_and_shifts_only_its_panels(dtype: str, rank: int, panels: tuple[int, int, int]) -> None:
    cur, u = random_rows(19, ROWS, N), random_rows(20, ROWS, 24)
    cur[:, 5] = -0.0  # an empty sum does not make it +0
    adapter = Adapter(dtype, rank, seed=21, u_column=11, panels=panels, dora=True)
    out = add_lora(cur, u, [adapter.segment(1, 4)])
    expected = cur.copy()
    expected[1:4] = adapter.added(cur[1:4], u[1:4, 11 : 11 + rank])
    assert not np.array_equal(expected, cur)
    assert out.tobytes() == expected.tobytes()


def test_tiles_may_run_in_any_ranges_and_order() -> None:
    x = random_rows(9, ROWS, K)
    first, second = Adapter("bf16", 24, seed=10), Adapter("f32", 16, seed=12, u_column=32)
    segments = [first.segment(0, 4), second.segment(4, 7)]
    expected = shrink(x, segments, 48)
    assert np.array_equal(shrink(x, segments, 48, tiles=[(2, 3), (0, 0), (1, 2), (0, 1)]), expected)


def test_without_rows_or_segments_there_are_no_tiles() -> None:
    assert shrink(random_rows(13, 2, K), [], 16).min() == -7.0
    assert shrink(np.zeros((0, K), np.float32), [Adapter("f32", 8, seed=14).segment(0, 0)], 16).size == 0
    cur = random_rows(15, 2, N)
    assert np.array_equal(add_lora(cur, np.zeros((2, 16), np.float32), []), cur)


def test_shrink_refuses_an_activation_of_another_type() -> None:
    segments = (abi.LoraSegment * 1)(Adapter("f32", 8, seed=16).segment(0, 1))
    args = abi.ShrinkArgs(segments=segments, segment_count=1, segment_stride=c.sizeof(abi.LoraSegment))
    u, x = np.zeros((1, 16), np.float32), random_rows(17, 1, K)
    args.common = abi.Args(struct_size=c.sizeof(args), rows=1)
    q, scale, total = model.quantize_rows(x)
    inputs = abi.Activation(c.sizeof(abi.Activation), 64, abi.Tensor(), *map(abi.tensor, (q, scale, total)))
    args.input = c.pointer(inputs)
    args.u = abi.tensor(u)
    status, message = abi.run(KERNELS["shrink_f32"], args)
    assert (status, "no values of the type" in message) == (2, True)


@pytest.mark.parametrize(
    ("steps", "status"),
    [([(11, 0)], 1), ([(0, 0)], 1), ([(5, 0)], 1), ([(5, 7)], 1), ([(9, 6)], 1), ([(1, 1)], 1), ([(5, 1), (5, 2)], 2)],
)
def test_unknown_epilogues_and_functions_and_a_second_gated_mul_are_refused(
    steps: list[tuple[int, int]], status: int
) -> None:
    cur = random_rows(18, 1, 64)
    heads = [abi.Epilogue(c.sizeof(abi.Epilogue), kind, function=function) for kind, function in steps]
    args = abi.EpilogueArgs(input=abi.tensor(cur), out=abi.tensor(cur))
    args.common = abi.Args(c.sizeof(args), len(heads), None, abi.steps(*heads), 1)
    got, message = abi.run(KERNELS["epilogue"], args)
    assert (got, "epilogue list" in message) == (status, True)
