"""LoRA adapters as the ABI lays them out, their part of the result by the model, and shrink called directly."""

from __future__ import annotations

import ctypes as c
from typing import NamedTuple

import numpy as np
from kernels import abi_mirror as abi
from kernels import model
from kernels.harness import packed_bytes, random_rows

from infeng_core import _native as native

STORED = {"f32": abi.F32, "bf16": abi.BF16, "int8": abi.I8}
FORMAT = {"f32": "f32", "bf16": "bf16", "int8": "int8-row"}
K, N = 100, 80


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """Round to bf16, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Piece(NamedTuple):
    """Rank rows [row, row + len(a)) over inputs [first, first + a.shape[1]); ``scale`` is theirs in int8."""

    row: int
    first: int
    a: np.ndarray
    scale: np.ndarray


def stacked(fmt: str, rows: np.ndarray) -> np.ndarray:
    """Return (rank, k) in panels; a last one of at most 8 rows is folded over half of the inputs."""
    rank, k = rows.shape
    whole, half = (rank + 7) // 16 * 16, -(-k // 128) * 64
    found = [packed_bytes(fmt, rows[:whole])] if whole else []
    if rank > whole:
        lanes = np.zeros((2, 8, half), np.float32)
        for lane, part in zip(lanes, (rows[whole:, :half], rows[whole:, half:]), strict=True):
            lane[: part.shape[0], : part.shape[1]] = part
        found.append(packed_bytes(fmt, lanes.reshape(16, half)))
    parts = [np.frombuffer(each, np.uint8) for each in found]
    out = np.asarray(memoryview(native.Arena(max(sum(map(len, parts)), 64), huge_pages=False))).view(np.uint8)
    out = out[: sum(map(len, parts))]
    np.concatenate([np.zeros(0, np.uint8), *parts], out=out)
    return out


def unstacked(fmt: str, panels: np.ndarray, rank: int, k: int) -> list[Piece]:
    """Return the pieces of A, by rows, then by inputs."""
    whole, half, size = (rank + 7) // 16, -(-k // 128) * 64, native.panel_bytes(fmt, k)
    found = []
    for panel in range(whole):
        lanes, scale = panel_of(fmt, panels[panel * size :], k)
        found.append(Piece(16 * panel, 0, lanes[: rank - 16 * panel], scale[: rank - 16 * panel]))
    if rank > 16 * whole:
        lanes, scale = panel_of(fmt, panels[whole * size :], half)
        count = rank - 16 * whole
        found.append(Piece(16 * whole, 0, lanes[:count, :k], scale[:count]))
        found.append(Piece(16 * whole, half, lanes[8 : 8 + count, : max(k - half, 0)], scale[8 : 8 + count]))
    return found


def panel_of(fmt: str, panel: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 16 lanes of a panel, and the floats at its head: scales in int8-row."""
    return native.unpack(fmt, panel, 0, 1, k), panel[:64].copy().view(np.float32)


def sums(x: np.ndarray, pieces: list[Piece], dtype: str) -> np.ndarray:
    """Return x A^T as docs/numerics.md has it: a folded row is the sum of its two pieces."""
    q, scale, _ = model.quantize_rows(x) if dtype == "int8" else (x, x, None)
    rank = max((piece.row + len(piece.a) for piece in pieces), default=0)
    out = np.zeros((len(x), rank), np.float32)
    for piece in pieces:
        rows, k = slice(piece.row, piece.row + len(piece.a)), piece.a.shape[1]
        if dtype != "int8":
            found = model.shrink_float(x[:, piece.first : piece.first + k], piece.a)
        else:
            padded = np.zeros((len(piece.a), -(-k // 64) * 64), np.int8)
            padded[:, :k] = np.rint(piece.a / np.where(piece.scale == 0, 1, piece.scale)[:, None])
            inputs = q[:, piece.first :], scale[:, piece.first // 64 :], None
            scales = np.repeat(piece.scale[:, None], padded.shape[1] // 64, axis=1)
            found = model.linear_int(inputs, padded, scales, 64)
        out[:, rows] = out[:, rows] + found if piece.first else found
    return out


class Adapter:
    """A of (rank, k) and B of (panels * 16, rank) in one storage type, as the ABI lays them out.

    B's outputs are those of panels ``first``, ``first + step`` and so on. ``dora`` adds a row scale and a bias.
    """

    def __init__(
        self,
        dtype: str,
        rank: int,
        seed: int,
        u_column: int = 0,
        *,
        weight: float = 1.0,
        panels: tuple[int, int, int] = (0, 1, N // 16),
        dora: bool = False,
        k: int = K,
    ) -> None:
        self.dtype, self.rank, self.u_column, self.weight, self.k = dtype, rank, u_column, weight, k
        self.first, self.step, self.count = panels
        rows = -(-rank // 16) * 16
        outputs = self.count * 16
        a, b = random_rows(seed, max(rows, 16), k)[:rank], random_rows(seed + 1, outputs, max(rank, 1))[:, :rank]
        self.scaling = np.zeros(rows, np.float32)
        self.scaling[:rank] = random_rows(seed + 2, 1, max(rank, 1))[0, :rank]
        self.row_scale, self.bias = random_rows(seed + 3, 2, outputs) if dora else (None, None)
        self.a_panels = stacked(FORMAT[dtype], a)
        self.pieces = unstacked(FORMAT[dtype], self.a_panels, rank, k)
        self.a = np.zeros((rank, k), np.float32)
        for row, first, part, _ in self.pieces:
            self.a[row : row + len(part), first : first + part.shape[1]] = part
        self.b_scale = self.b_scale_bits = None
        stored = b
        if dtype == "bf16":
            stored = bf16_bits(b)
            self.b = bf16_values(stored)
        elif dtype == "int8":
            stored, scale, _ = model.quantize(b) if rank else (b.astype(np.int8), np.zeros(outputs, "f4"), None)
            self.b, self.b_scale_bits = stored, bf16_bits(scale)
            self.b_scale = bf16_values(self.b_scale_bits)
        else:
            self.b = b
        self.b_panels = np.ascontiguousarray(stored.reshape(self.count, 16, rank).transpose(0, 2, 1))

    def segment(self, begin: int, end: int) -> abi.LoraSegment:
        return abi.LoraSegment(
            row_begin=begin,
            row_end=end,
            rank=self.rank,
            dtype=STORED[self.dtype],
            u_column=self.u_column,
            weight=self.weight,
            panel_begin=self.first,
            panel_step=self.step,
            panel_count=self.count,
            **{
                name: None if (array := getattr(self, attribute)) is None else array.ctypes.data
                for name, attribute in (
                    ("a", "a_panels"),
                    ("scaling", "scaling"),
                    ("b", "b_panels"),
                    ("b_scale", "b_scale_bits"),
                    ("row_scale", "row_scale"),
                    ("bias", "bias"),
                )
            },
        )

    def shrunk(self, x: np.ndarray) -> np.ndarray:
        return model.scaled(sums(x, self.pieces, self.dtype), self.scaling[: self.rank], self.weight)

    def added(self, cur: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return cur (rows, N) with this adapter's part on its panels; u (rows, rank)."""
        out = cur.reshape(len(cur), -1, 16).copy()
        mine = slice(self.first, self.first + self.count * self.step, self.step)
        part = np.ascontiguousarray(out[:, mine]).reshape(len(cur), -1)
        part = model.lora(part, u, self.b, self.b_scale, self.row_scale, self.bias)
        out[:, mine] = part.reshape(len(cur), -1, 16)
        return out.reshape(cur.shape)


def shrink(
    kernel: abi.Kernel, x: np.ndarray, segments: list[abi.LoraSegment], columns: int, **how: object
) -> np.ndarray:
    """Run shrink over both forms of x; u is filled with a stale value before."""
    u = np.full((len(x), columns), -7.0, np.float32)
    parts = model.quantize_rows(x)
    array = (abi.LoraSegment * max(len(segments), 1))(*segments)
    args = abi.ShrinkArgs(segments=array, segment_count=len(segments), segment_stride=c.sizeof(abi.LoraSegment))
    args.common = abi.Args(struct_size=c.sizeof(args), rows=len(x))
    inputs = abi.Activation(c.sizeof(abi.Activation), 64, abi.tensor(x), *(abi.tensor(part) for part in parts))
    args.input = c.pointer(inputs)
    args.u = abi.tensor(u)
    assert abi.run(kernel, args, **how) == (0, "")
    return u
