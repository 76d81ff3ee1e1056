"""Read weights out of their panels by the text of docs/format.md alone: a second pair of eyes on the layouts.

A panel holds 16 outputs. ``read(format, panels, k)`` takes the bytes of all panels, (panels, panel bytes) uint8, and
returns (panels * 16, k) float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Panels = NDArray[np.uint8]  # (panels, bytes)
Matrix = NDArray[np.float64]  # (panels * 16, k)


def read(format: str, panels: Panels, k: int) -> Matrix:
    """Return the numbers that the panels stand for."""
    readers: dict[str, Callable[[Panels], NDArray[np.floating]]]
    readers = {"f32": _f32, "bf16": _bf16, "int8-row": _int8_row, "int4-g64": _int4_g64, "int4-g32": _int4_g32}
    readers |= {f"int{bits}-p32": partial(_p32, bits) for bits in (4, 5, 6)} | {"int8-g32": _int8_g32}
    readers |= {f"int4-a{size}": partial(_affine, size) for size in (256, 128)}
    padded = readers[format](panels)  # (panels, 16, k padded)
    return padded[:, :, :k].reshape(-1, k).astype(np.float64)


def _f32(panels: Panels) -> NDArray[np.float32]:
    values = panels.view("<f4")  # (panels, k * 16): for each input its 16 outputs
    return values.reshape(len(panels), -1, 16).swapaxes(1, 2)


def _bf16(panels: Panels) -> NDArray[np.float32]:
    halves = panels.view("<u2").astype(np.uint32) << 16  # a bf16 is the upper half of a binary32
    values = halves.view(np.float32).reshape(len(panels), -1, 16, 2)  # (panels, k / 2, 16, 2)
    return values.swapaxes(1, 2).reshape(len(panels), 16, -1)


def _int8_row(panels: Panels) -> NDArray[np.float64]:
    scale = panels[:, :64].copy().view("<f4").astype(np.float64)  # (panels, 16)
    q = panels[:, 64:].reshape(len(panels), -1, 16, 4).astype(np.float64) - 128  # (panels, k / 4, 16, 4)
    return q.swapaxes(1, 2).reshape(len(panels), 16, -1) * scale[:, :, None]


def _int8_g32(panels: Panels) -> NDArray[np.float64]:
    """For 64 inputs a line of scales for two groups of 32, then 16 lines of bytes."""
    lines = panels.reshape(len(panels), -1, 17, 64)
    scales = lines[:, :, 0].copy().view("<f2").reshape(len(panels), -1, 2, 16).astype(np.float64)
    q = lines[:, :, 1:].reshape(len(panels), -1, 16, 16, 4).astype(np.float64) - 128  # (.., line, output, input)
    values = q.swapaxes(2, 3).reshape(len(panels), -1, 16, 2, 32) * scales.swapaxes(2, 3)[..., None]
    return values.swapaxes(1, 2).reshape(len(panels), 16, -1)


def _int4_g64(panels: Panels) -> NDArray[np.float64]:
    """Go through the 64-byte lines one by one: a line of scales for two groups, then 8 lines of nibbles for each."""
    lines = panels.reshape(len(panels), -1, 64)
    columns: list[NDArray[np.float64]] = []  # (panels, 16) for each input
    at = 0
    while at < lines.shape[1]:
        scales = lines[:, at].copy().view("<f2").reshape(-1, 2, 16).astype(np.float64)  # (panels, group, 16)
        at += 1
        for group in range(min(2, (lines.shape[1] - at) // 8)):
            nibbles = lines[:, at : at + 8].reshape(-1, 8, 16, 4)  # (panels, line, output, input of the line)
            for half in (nibbles & 15, nibbles >> 4):  # inputs 0..31 of the group, then 32..63
                q = half.astype(np.float64) - 8
                columns += [q[:, line, :, j] * scales[:, group] for line in range(8) for j in range(4)]
            at += 8
    return np.stack(columns, axis=2)


def _int4_g32(panels: Panels) -> NDArray[np.float64]:
    """A line of scales for two groups of 32, then 4 lines of nibbles for each."""
    lines = panels.reshape(len(panels), -1, 9, 64)
    columns: list[NDArray[np.float64]] = []  # (panels, 16) for each input
    for block in range(lines.shape[1]):
        scales = lines[:, block, 0].copy().view("<f2").reshape(-1, 2, 16).astype(np.float64)  # (panels, group, 16)
        for group in (0, 1):
            nibbles = lines[:, block, 1 + 4 * group : 5 + 4 * group].reshape(-1, 4, 16, 4)
            for half in (nibbles & 15, nibbles >> 4):  # inputs 0..15 of the group, then 16..31
                q = half.astype(np.float64) - 8
                columns += [q[:, line, :, j] * scales[:, group] for line in range(4) for j in range(4)]
    return np.stack(columns, axis=2)


def _p32(bits: int, panels: Panels) -> NDArray[np.float64]:
    weights, d = sub_scaled(bits, panels)
    return weights * d[:, :, None].astype(np.float64)


def sub_scaled(bits: int, panels: Panels) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return s (u - z), (panels, 16, k padded), and the scale of each output, (panels, 16).

    A line of f32 scales; then for 128 inputs a line of sub-scales and, for each quarter, ``bits`` lines.
    """
    d = panels[:, :64].copy().view("<f4")
    lines = panels[:, 64:].reshape(len(panels), -1, 16, 4).astype(np.int64)  # (panels, line, output, byte)
    columns: list[NDArray[np.int64]] = []  # (panels, 16) for each input
    at = 0
    while at < lines.shape[1]:
        subs = lines[:, at]
        at += 1
        for quarter in range(min(4, (lines.shape[1] - at) // bits)):
            byte = subs[:, :, 2 * (quarter % 2) + quarter // 2]  # (panels, 16)
            s, z = byte % 2 ** (8 - bits) + 1, byte >> (8 - bits)
            nibbles, upper = lines[:, at : at + 4], lines[:, at + 4 : at + bits]
            for eighth in range(8):  # four inputs each
                u = nibbles[:, eighth % 4] >> (4 * (eighth // 4)) & 15  # (panels, output, input)
                if bits == 5:
                    u = u + (upper[:, 0] >> eighth & 1) * 16
                if bits == 6:
                    u = u + (upper[:, eighth // 4] >> (2 * (eighth % 4)) & 3) * 16
                columns += [s * (u[:, :, j] - z) for j in range(4)]
            at += bits
    return np.stack(columns, axis=2), d


@dataclass
class WithMinima:
    """What panels with minima hold: s and t are (panels * 16, k padded / 32), d and e one for each superblock."""

    u: NDArray[np.int64]  # (panels * 16, k padded)
    s: NDArray[np.int64]
    t: NDArray[np.int64]
    d: NDArray[np.float32]  # (panels * 16, superblocks)
    e: NDArray[np.float32]


def with_minima(size: int, panels: Panels) -> WithMinima:
    """Go through the lines: two of scales in halves for ``size`` inputs, then one of s and t and eight for each 64."""
    lines = panels.reshape(len(panels), -1, 64)
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in "ustde"}
    at = 0
    while at < lines.shape[1]:
        halves = lines[:, at].copy().view("<f2").astype(np.float32)  # (panels, 32)
        columns["d"].append(halves[:, :16])
        columns["e"].append(halves[:, 16:])
        at += 1
        for _ in range(min(size // 64, (lines.shape[1] - at) // 9)):
            scales = lines[:, at].reshape(-1, 16, 4).astype(np.int64)  # (panels, output, byte)
            columns["s"] += [scales[:, :, 0], scales[:, :, 1]]
            columns["t"] += [scales[:, :, 2], scales[:, :, 3]]
            for half in (lines[:, at + 1 : at + 5], lines[:, at + 5 : at + 9]):  # 32 inputs each
                nibbles = half.reshape(-1, 4, 16, 4).astype(np.int64)  # (panels, line, output, input of the line)
                for units in (nibbles & 15, nibbles >> 4):
                    columns["u"] += [units[:, line, :, j] for line in range(4) for j in range(4)]
            at += 9
    return WithMinima(**{name: np.stack(found, axis=2).reshape(-1, len(found)) for name, found in columns.items()})


def _affine(size: int, panels: Panels) -> NDArray[np.float32]:
    """Return d s u - e t in binary64, rounded once: both products are exact there."""
    found = with_minima(size, panels)
    width = found.u.shape[1]
    s, t = (part.repeat(32, axis=1) for part in (found.s, found.t))
    d, e = (part.astype(np.float64).repeat(size, axis=1)[:, :width] for part in (found.d, found.e))
    return (d * s * found.u - e * t).astype(np.float32).reshape(len(panels), 16, width)
