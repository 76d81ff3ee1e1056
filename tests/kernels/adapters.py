"""LoRA adapters as the ABI lays them out, their part of the result by the model, and shrink called directly."""

from __future__ import annotations

import ctypes as c

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
        fmt = FORMAT[dtype]
        self.a_panels = np.frombuffer(packed_bytes(fmt, a if rank else np.zeros((1, k), np.float32)), np.uint8)
        self.a = native.unpack(fmt, self.a_panels, 0, rows // 16, k)[:rank]
        self.b_scale = None
        stored = b
        if dtype == "bf16":
            stored = bf16_bits(b)
            self.b = bf16_values(stored)
        elif dtype == "int8":
            stored, self.b_scale, _ = model.quantize(b) if rank else (b.astype(np.int8), np.zeros(outputs, "f4"), None)
            self.b = stored
            size = native.panel_bytes(fmt, k)
            heads = self.a_panels[: rows // 16 * size].reshape(-1, size)[:, :64]
            self.a_scale = np.ascontiguousarray(heads).view(np.float32).reshape(-1)[:rank]
            self.q_a = np.rint(self.a / np.where(self.a_scale == 0, 1, self.a_scale)[:, None])
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
                    ("b_scale", "b_scale"),
                    ("row_scale", "row_scale"),
                    ("bias", "bias"),
                )
            },
        )

    def shrunk(self, x: np.ndarray) -> np.ndarray:
        scaling = self.scaling[: self.rank]
        if self.dtype != "int8":
            return model.scaled(model.shrink_float(x, self.a), scaling, self.weight)
        q, scale, _ = model.quantize_rows(x)
        padded = np.zeros((self.rank, q.shape[1]), np.int8)
        padded[:, : self.k] = self.q_a
        scales = np.repeat(self.a_scale[:, None], scale.shape[1], axis=1)
        return model.scaled(model.linear_int((q, scale, None), padded, scales), scaling, self.weight)

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
