"""int8t4 holds numbers of int8 in fewer bits: the reference computes the same bytes from both."""

import ctypes as c
from pathlib import Path

import numpy as np
import pytest
from kernels import abi_mirror as abi
from kernels import adapters
from kernels.adapters import Adapter
from kernels.harness import random_rows

import infeng_core

KERNELS = abi.open_kernels(str(Path(infeng_core.__file__).parent / "libinfeng_reference.so"))
ROWS, N = 5, 80
I8T4 = 9


def with_small_tails(panels: np.ndarray) -> np.ndarray:
    """Return panels of int8-row, (panels, bytes), with every lane but 0 and 8 cut to [-8, 7]."""
    out = panels.copy()
    lines = out[:, 64:].reshape(len(out), -1, 16, 4)
    for lane in range(16):
        if lane % 8:
            lines[:, :, lane] = np.clip(lines[:, :, lane], 120, 135)
    return out


def tails_of(panel: np.ndarray) -> bytes:
    """Return a panel of int8-row in the layout that abi.h describes, byte by byte."""
    q = panel[64:].reshape(-1, 16, 4)  # (lines of 4 inputs, lanes, inputs), q + 128
    out = bytearray(panel[:64].tobytes())
    for group in range(len(q) // 16):
        lines = q[16 * group : 16 * group + 16].astype(int)
        for line in range(8):
            for lane in range(16):
                for j in range(4):
                    low, high = lines[line, lane, j], lines[line + 8, lane, j]
                    upper = (low >> 4, high >> 4) if lane % 8 == 0 else (low - 120, high - 120)
                    out.append(upper[0] | upper[1] << 4)
        for lane in (0, 8):
            for line in range(8):
                for j in range(4):
                    out.append(lines[line, lane, j] & 15 | (lines[line + 8, lane, j] & 15) << 4)
    return bytes(out)


def blocks_of(b: np.ndarray) -> bytes:
    """Return a B, (panels, rank, 16) int8, in the layout that abi.h describes."""
    out = bytearray()
    for panel in b:
        for r, row in enumerate(panel.astype(int)):
            tail = [row[i] + 8 | (row[i + 8] + 8) << 4 for i in range(8)] if r % 8 else []
            out += bytes(tail) if r % 8 else panel[r].tobytes()
    return bytes(out)


def both(rank: int, k: int, seed: int) -> tuple[Adapter, abi.LoraSegment, list[bytes]]:
    """Return an adapter in int8, a segment of the same numbers in int8t4, and what the segment points to."""
    plain = Adapter("int8", rank, seed, dora=True, k=k)
    half, whole = -(-k // 128) * 64, (rank + 7) // 16
    size = 64 + -(-k // 64) * 1024
    parts = [plain.a_panels[: whole * size].reshape(whole, size)] if whole else []
    parts += [plain.a_panels[whole * size :].reshape(1, 64 + half * 16)] if rank % 16 else []
    small = [with_small_tails(part) for part in parts]
    plain.a_panels[:] = np.concatenate([part.reshape(-1) for part in small])
    tails = np.arange(rank) % 8 > 0
    plain.b_panels[:, tails] = np.clip(plain.b_panels[:, tails], -8, 7)
    kept = [b"".join(tails_of(panel) for part in small for panel in part), blocks_of(plain.b_panels)]
    segment = plain.segment(1, 4)
    arrays = [np.frombuffer(bytearray(each) + bytearray(64), np.uint8) for each in kept]
    segment.dtype, segment.a, segment.b = I8T4, arrays[0].ctypes.data, arrays[1].ctypes.data
    return plain, segment, arrays


@pytest.mark.parametrize("k", [40, 64, 100, 192, 300])
@pytest.mark.parametrize("rank", [8, 16, 24, 48])
def test_tails_give_the_bytes_of_the_same_numbers_in_int8(rank: int, k: int) -> None:
    plain, segment, kept = both(rank, k, seed=3)
    x, cur = random_rows(1, ROWS, k), random_rows(2, ROWS, N)
    columns = -(-rank // 16) * 16
    found = [adapters.shrink(KERNELS["shrink_int8"], x, [each], columns) for each in (plain.segment(1, 4), segment)]
    assert found[0].tobytes() == found[1].tobytes()
    assert len(np.unique(found[0][1:4, :rank])) > rank  # it does something
    added = [add_lora(cur, found[0], [each]) for each in (plain.segment(1, 4), segment)]
    assert added[0].tobytes() == added[1].tobytes()
    assert not np.array_equal(added[0][1:4], cur[1:4])
    assert len(kept[1]) - 64 == N // 16 * rank * 9


def add_lora(cur: np.ndarray, u: np.ndarray, segments: list[abi.LoraSegment]) -> np.ndarray:
    out = np.full_like(cur, -7.0)
    step = abi.LoraEpilogue(abi.Epilogue(c.sizeof(abi.LoraEpilogue), abi.LORA), abi.tensor(u))
    step.segments, step.segment_count = (abi.LoraSegment * len(segments))(*segments), len(segments)
    step.segment_stride = c.sizeof(abi.LoraSegment)
    args = abi.EpilogueArgs(input=abi.tensor(cur), out=abi.tensor(out))
    args.common = abi.Args(c.sizeof(args), 1, None, abi.steps(step), len(cur))
    assert abi.run(KERNELS["epilogue"], args) == (0, "")
    return out
