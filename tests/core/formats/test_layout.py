"""docs/format.md describes each byte: panels decoded by it alone, in NumPy, are what the native core computes with."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.conversion import convert
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import BUILTIN, builtin_format

Maker = Callable[..., Path]
Bytes = NDArray[np.uint8]


def padded(k: int) -> int:
    return -(-k // 64) * 64


def f32(panel: Bytes, k: int) -> NDArray[np.float32]:
    return panel.view(np.float32).reshape(padded(k), 16).T


def bf16(panel: Bytes, k: int) -> NDArray[np.float32]:
    halves = panel.view(np.uint16).reshape(padded(k) // 2, 16, 2)
    values = (halves.astype(np.uint32) << 16).view(np.float32)
    return values.transpose(1, 0, 2).reshape(16, padded(k))


def int8_row(panel: Bytes, k: int) -> NDArray[np.float32]:
    scale = panel[:64].view(np.float32)
    q = panel[64:].reshape(padded(k) // 4, 16, 4).transpose(1, 0, 2).reshape(16, padded(k)).astype(np.float32) - 128
    return q * scale[:, None]


def int8_g32(panel: Bytes, k: int) -> NDArray[np.float32]:
    blocks = panel.reshape(padded(k) // 64, 64 + 1024)
    scales = np.ascontiguousarray(blocks[:, :64]).view(np.float16).reshape(-1, 2, 16).astype(np.float32)
    q = blocks[:, 64:].reshape(-1, 2, 8, 16, 4).astype(np.float32) - 128  # (block, group of 32, line, output, input)
    return (q * scales[:, :, None, :, None]).transpose(3, 0, 1, 2, 4).reshape(16, padded(k))


def int4_g64(panel: Bytes, k: int) -> NDArray[np.float32]:
    out = np.zeros((16, padded(k)), np.float32)
    position = 0
    for block in range(0, padded(k), 128):
        scales = panel[position : position + 64].view(np.float16).reshape(2, 16).astype(np.float32)
        position += 64
        for group in range(min(2, (padded(k) - block) // 64)):
            lines = panel[position : position + 512].reshape(8, 16, 4)
            position += 512
            nibbles = np.concatenate([lines & 15, lines >> 4]).transpose(1, 0, 2).reshape(16, 64)
            out[:, block + 64 * group : block + 64 * group + 64] = (nibbles.astype(np.float32) - 8) * scales[
                group, :, None
            ]
    assert position == len(panel)
    return out


def int4_g32(panel: Bytes, k: int) -> NDArray[np.float32]:
    blocks = panel.reshape(padded(k) // 64, 576)
    scales = np.ascontiguousarray(blocks[:, :64]).view(np.float16).reshape(-1, 2, 16).astype(np.float32)
    lines = blocks[:, 64:].reshape(-1, 2, 4, 16, 4)  # (block of 64, group of 32, line, output, input of the line)
    q = np.concatenate([lines & 15, lines >> 4], axis=2).astype(np.float32) - 8
    return (q * scales[:, :, None, :, None]).transpose(3, 0, 1, 2, 4).reshape(16, padded(k))


def p32(bits: int, panel: Bytes, k: int) -> NDArray[np.float32]:
    out = np.zeros((16, padded(k)), np.float32)
    scale, position = panel[:64].view(np.float32), 64
    for block in range(0, padded(k), 128):
        sub_scales = panel[position : position + 64].reshape(16, 4).astype(int)
        position += 64
        for h in range(min(4, (padded(k) - block) // 32)):
            lines = panel[position : position + 64 * bits].reshape(bits, 16, 4).astype(int)
            position += 64 * bits
            packed = sub_scales[:, 2 * (h % 2) + h // 2]  # (output,)
            s, z = packed % 2 ** (8 - bits) + 1, packed // 2 ** (8 - bits)
            for i in range(8):
                u = lines[i % 4] // 16 ** (i // 4) % 16  # (output, input of the line)
                if bits == 5:
                    u += 16 * (lines[4] // 2**i % 2)
                if bits == 6:
                    u += 16 * (lines[4 + i // 4] // 4 ** (i % 4) % 4)
                at = block + 32 * h + 4 * i
                out[:, at : at + 4] = (s[:, None] * (u - z[:, None])).astype(np.float32) * scale[:, None]
    assert position == len(panel)
    return out


def affine(size: int, panel: Bytes, k: int) -> NDArray[np.float32]:
    out = np.zeros((16, padded(k)), np.float32)
    position = 0
    for at in range(0, padded(k), 64):
        if at % size == 0:
            d, e = panel[position : position + 64].view(np.float16).reshape(2, 16, 1).astype(np.float32)
            position += 64
        scales = panel[position : position + 64].reshape(16, 4).astype(np.float32)
        position += 64
        for h in (0, 1):
            lines = panel[position : position + 256].reshape(4, 16, 4)
            position += 256
            u = np.concatenate([lines & 15, lines >> 4]).transpose(1, 0, 2).reshape(16, 32).astype(np.float32)
            values = d * (scales[:, h : h + 1] * u) - e * scales[:, 2 + h : 3 + h]
            out[:, at + 32 * h : at + 32 * h + 32] = values
    assert position == len(panel)
    return out


DECODERS: dict[str, Callable[[Bytes, int], NDArray[np.float32]]] = {
    "f32": f32,
    "bf16": bf16,
    "int8-row": int8_row,
    "int4-g64": int4_g64,
    "int4-g32": int4_g32,
    "int4-p32": partial(p32, 4),
    "int5-p32": partial(p32, 5),
    "int6-p32": partial(p32, 6),
    "int8-g32": int8_g32,
    "int4-a256": partial(affine, 256),
    "int4-a128": partial(affine, 128),
}
PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
BITS = {name: float(bits) for name, bits in re.findall(r"^\| `(\S+)` \|.*\| ([\d.]+) \|$", PAGE, re.MULTILINE)}
PANEL_BYTES = dict(re.findall(r"^(\S+) +(\d.*K64.*)$", PAGE, re.MULTILINE))


def test_the_page_has_a_row_and_a_size_for_every_format() -> None:
    assert list(BITS) == list(PANEL_BYTES) == list(BUILTIN)
    for name, bits in BITS.items():
        assert 8 * builtin_format(name).panel_bytes(1 << 20) / (16 << 20) == pytest.approx(bits, abs=1e-3)


@pytest.mark.parametrize("format", list(BUILTIN))
def test_a_file_decoded_by_the_page_gives_the_values_of_the_engine(
    make_model: Maker, tmp_path: Path, format: str
) -> None:
    source = make_model(hidden_size=136, intermediate_size=200)  # 3 and 4 groups: a half superblock and whole ones
    made = convert(source, tmp_path / "native", FormatChoice(format))
    raw: dict[str, Any] = load_file(made.path / "weights-00001.safetensors")
    model = read_native(made.path, builtin_format)
    for name, tensor in model.tensors.items():
        decoded = np.concatenate([DECODERS[format](panel, tensor.k) for panel in raw[name]])
        assert builtin_format(format).minima or not decoded[:, tensor.k :].any()
        np.testing.assert_array_equal(decoded[: tensor.n, : tensor.k], tensor.dequantize())
    if format == "f32":
        q, k, v = (load_file(source / "model.safetensors")[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv")
        joined = np.concatenate([f32(panel, 136) for panel in raw["layers.0.qkv_proj"]])[:, :136]
        for part, first in ((q, 0), (k, 64), (v, 96)):  # 60 and 30 rows, each from a panel boundary on
            np.testing.assert_array_equal(joined[first : first + len(part)], part)


@pytest.mark.parametrize("format", list(BUILTIN))
@pytest.mark.parametrize("k", [1, 8, 64, 65, 128, 172, 576, 896, 2048])
def test_the_size_of_a_panel_is_as_stated(format: str, k: int) -> None:
    stated = eval(PANEL_BYTES[format], {"K64": padded(k), "ceil": math.ceil})
    assert builtin_format(format).panel_bytes(k) == stated
