"""Tiny models as others quantize them: each packer follows its library's published layout, word by word.

What a model means is known here: random codes, scales and zero points come first, the weights follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiny_model
from numpy.typing import NDArray
from tiny_model import Shape

Array = NDArray[Any]
Tensors = dict[str, tuple[str, Array]]
"""Safetensors' name of the type, and the bytes as an array of as many values."""

SHAPE = Shape(hidden=128, intermediate=256, heads=4, kv_heads=2, head_dim=32, tie=False)
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64, "I8": np.int8,
          "U8": np.uint8, "F8_E4M3": np.uint8}  # fmt: skip
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def save(path: Path, tensors: Mapping[str, tuple[str, Array]]) -> None:
    """Write a safetensors file of any types, which NumPy's face of the library does not."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, position = [], 0
    for name, (dtype, array) in tensors.items():
        assert array.dtype == DTYPES[dtype]
        blobs.append(np.ascontiguousarray(array).tobytes())
        end = position + len(blobs[-1])
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def bf16(values: Array) -> NDArray[np.uint16]:
    """Cut float32 to bf16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return what bf16 means."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Weight:
    """weight = scales[:, g_idx] * (codes - zeros[:, g_idx]), codes from 0 to 2^bits - 1."""

    codes: NDArray[np.uint32]  # (n, k)
    scales: NDArray[np.float32]  # (n, groups)
    zeros: NDArray[np.uint32]  # (n, groups)
    g_idx: NDArray[np.int32]  # (k,)
    bits: int

    def values(self) -> NDArray[np.float32]:
        difference = self.codes.astype(np.float32) - self.zeros[:, self.g_idx].astype(np.float32)
        return self.scales[:, self.g_idx] * difference


@dataclass(frozen=True)
class Kind:
    """How every linear of a model is quantized. A group of -1: a whole row."""

    bits: int = 4
    group: int = 64
    sym: bool = True
    desc_act: bool = False
    scale: str = "F16"  # or BF16
    lowest: bool = True  # whether the least code occurs

    def draw(self, n: int, k: int, rng: np.random.Generator) -> Weight:
        group = k if self.group == -1 else self.group
        groups, middle = -(-k // group), 1 << (self.bits - 1)
        codes = rng.integers(0 if self.lowest else 1, 2 * middle, (n, k), dtype=np.uint32)
        spread = (0.5 + rng.random((n, groups))) / (middle * np.sqrt(k / 3))
        scales = wide(bf16(spread)) if self.scale == "BF16" else spread.astype(np.float16).astype(np.float32)
        zeros = np.full((n, groups), middle, np.uint32)
        if not self.sym:
            zeros = rng.integers(0, 2 * middle, (n, groups), dtype=np.uint32)
            zeros[::7] = 0
        order = rng.permutation(k) if self.desc_act else np.arange(k)
        g_idx = np.empty(k, np.int32)
        g_idx[order] = np.arange(k) // group
        return Weight(codes, scales, zeros, g_idx, self.bits)


def scaled(kind: Kind, scales: NDArray[np.float32]) -> tuple[str, Array]:
    """Return scales as the checkpoint holds them."""
    return (kind.scale, bf16(scales) if kind.scale == "BF16" else scales.astype(np.float16))


def gptq(weight: Weight, kind: Kind, version: int) -> Tensors:
    """Pack as ``QuantLinear.pack`` of AutoGPTQ and, for version 1, ``convert_gptq_v2_to_v1_format`` of GPTQModel."""
    bits, each = weight.bits, 32 // weight.bits
    (n, k), codes, zeros = weight.codes.shape, weight.codes.T, weight.zeros.T
    qweight = np.zeros((k // 32 * bits, n), np.uint32)
    for row in range(len(qweight)):
        for j in range(each):
            qweight[row] |= codes[row * each + j] << np.uint32(bits * j)
    qzeros = np.zeros((len(zeros), n // 32 * bits), np.uint32)
    for column in range(qzeros.shape[1]):
        for j in range(each):
            qzeros[:, column] |= zeros[:, column * each + j] << np.uint32(bits * j)
    if version == 1:
        qzeros -= np.uint32({4: 0b00010001000100010001000100010001, 8: 0b00000001000000010000000100000001}[bits])
    return {
        "qweight": ("I32", qweight.view(np.int32)),
        "qzeros": ("I32", qzeros.view(np.int32)),
        "scales": scaled(kind, weight.scales.T),
        "g_idx": ("I32", weight.g_idx),
    }


def awq(weight: Weight, kind: Kind) -> Tensors:
    """Pack as ``WQLinear_GEMM.from_linear`` of AutoAWQ."""

    def packed(codes: NDArray[np.uint32]) -> NDArray[np.int32]:
        words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
        for column in range(words.shape[1]):
            for i in range(8):
                words[:, column] |= codes[:, column * 8 + AWQ_ORDER[i]] << np.uint32(4 * i)
        return words.view(np.int32)

    zeros, scales = packed(weight.zeros.T), scaled(kind, weight.scales.T)
    return {"qweight": ("I32", packed(weight.codes.T)), "qzeros": ("I32", zeros), "scales": scales}


def int32_rows(codes: NDArray[np.uint32], bits: int) -> NDArray[np.int32]:
    """Pack as ``pack_to_int32`` of compressed-tensors, whose codes have half of their range added."""
    each = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each)))
    words = np.zeros((len(codes), padded.shape[1] // each), np.uint32)
    for i in range(each):
        words |= padded[:, i::each] << np.uint32(bits * i)
    return words.view(np.int32)


def packed(weight: Weight, kind: Kind) -> Tensors:
    """Store as ``PackedQuantizationCompressor``."""
    found: Tensors = {
        "weight_packed": ("I32", int32_rows(weight.codes, weight.bits)),
        "weight_scale": scaled(kind, weight.scales),
        "weight_shape": ("I64", np.array(weight.codes.shape, np.int64)),
    }
    if not kind.sym:
        zeros = np.ascontiguousarray(int32_rows(weight.zeros.T, weight.bits).T)
        found["weight_zero_point"] = ("I32", zeros)
    if kind.desc_act:
        found["weight_g_idx"] = ("I32", weight.g_idx)
    return found


def bytewise(weight: Weight, kind: Kind) -> Tensors:
    """Store as ``IntQuantizationCompressor``."""
    found: Tensors = {
        "weight": ("I8", (weight.codes.astype(np.int16) - 128).astype(np.int8)),
        "weight_scale": scaled(kind, weight.scales),
    }
    if not kind.sym:
        found["weight_zero_point"] = ("I8", (weight.zeros.astype(np.int16) - 128).astype(np.int8))
    return found


Pack = Callable[[Weight, Kind], Tensors]


@dataclass
class Model:
    """A written model and what it means."""

    directory: Path
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # of all matrices and vectors
    quantized: dict[str, Weight] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.directory / "model.safetensors"


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def write(
    directory: Path,
    scheme: Mapping[str, Any],
    pack: Pack,
    kind: Kind,
    *,
    shape: Shape = SHAPE,
    chosen: Callable[[str], bool] = is_linear,
    change: Callable[[Tensors], object] = lambda tensors: None,
) -> Model:
    """Write a tiny model whose ``chosen`` matrices are quantized; ``change`` is given all tensors before."""
    tiny_model.write(directory, shape)
    config = tiny_model.config(shape) | {"quantization_config": dict(scheme)}
    (directory / "config.json").write_text(json.dumps(config))
    rng, model, tensors = np.random.default_rng(5), Model(directory), Tensors()
    for name, values in tiny_model.tensors(shape).items():
        if chosen(name):
            weight = kind.draw(*values.shape, rng)
            model.quantized[name], model.weights[name] = weight, weight.values()
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{part}": value for part, value in pack(weight, kind).items()}
        else:
            half = values.astype(np.float16)
            model.weights[name], tensors[name] = half.astype(np.float32), ("F16", half)
    change(tensors)
    save(model.file, tensors)
    return model


def plain(model: Model, directory: Path, shape: Shape = SHAPE) -> Path:
    """Write what a model means as a model in float32."""
    tiny_model.write(directory, shape)
    save(directory / "model.safetensors", {name: ("F32", values) for name, values in model.weights.items()})
    return directory


# ------------------------------------------------------------------------------------------ what config.json says ---


def gptq_scheme(kind: Kind, version: int = 1, **more: Any) -> dict[str, Any]:
    """Return the ``quantization_config`` of GPTQModel."""
    form = {1: "gptq", 2: "gptq_v2"}[version]
    sizes = {"bits": kind.bits, "group_size": kind.group, "sym": kind.sym, "desc_act": kind.desc_act}
    return {"quant_method": "gptq", "checkpoint_format": form, "pack_dtype": "int32", "lm_head": False, **sizes, **more}


def awq_scheme(kind: Kind, **more: Any) -> dict[str, Any]:
    """Return the ``quantization_config`` of AutoAWQ."""
    sizes = {"bits": kind.bits, "group_size": kind.group, "zero_point": True, "modules_to_not_convert": None}
    return {"quant_method": "awq", "version": "gemm", **sizes, **more}


def compressed_scheme(kind: Kind, form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    """Return the ``quantization_config`` of llm-compressor; ``more`` are keys of ``weights``."""
    strategy = "channel" if kind.group == -1 else "group"
    weights = {
        "num_bits": kind.bits,
        "type": "int",
        "symmetric": kind.sym,
        "strategy": strategy,
        "group_size": None if kind.group == -1 else kind.group,
        "block_structure": None,
        "dynamic": False,
        "actorder": "group" if kind.desc_act else None,
        "observer": "minmax",
        **more,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
    }


def auto_round_scheme(kind: Kind, packing: str, **more: Any) -> dict[str, Any]:
    """Return the ``quantization_config`` of AutoRound."""
    sizes = {"bits": kind.bits, "group_size": kind.group, "sym": kind.sym, "data_type": "int"}
    return {"quant_method": "auto-round", "packing_format": packing, "iters": 200, **sizes, **more}
