"""Write quantized/*.safetensors beside this script: one matrix each, packed by the libraries that people use.

An environment with torch 2.13.0 (CPU), transformers, compressed-tensors, and gptqmodel, autoawq and auto-round (``pip
install --no-deps``: of their other needs packing asks for none but pypcre, logbar, device-smi, tokenicer, defuser and
threadpoolctl); then ``make_quantized.py [LIBRARY ...]``.

A file holds what the library stores of the module ``m``, and ``expected``: what the library makes of it, in float32 (of
AutoRound, whose own reader rounds to fp16: what it was given).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent / "quantized"
N, K = 32, 64

Tensors = dict[str, torch.Tensor]


def matrix() -> torch.Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(11)) * 0.05


def write(name: str, library: str, said: Mapping[str, Any], tensors: Tensors, expected: torch.Tensor) -> None:
    """Write one case."""
    HERE.mkdir(exist_ok=True)
    assert expected.shape == (N, K) and expected.dtype == torch.float32
    error = float((expected - matrix()).abs().max() / matrix().abs().max())
    assert error < 0.2, f"{name}: {error}"
    found = {f"m.{part}": value.contiguous() for part, value in tensors.items()} | {"expected": expected.contiguous()}
    made_by = f"{library} {importlib.metadata.version(library)}, torch {torch.__version__}"
    save_file(found, HERE / f"{name}.safetensors", {"quantization_config": json.dumps(said), "made_by": made_by})
    print(f"{name}: {made_by}, off by {error:.3f} of the largest weight")


def ranges(group: int, bits: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales that are values of fp16 and zero points, (n, groups), by minimum and maximum."""
    groups, top = matrix().reshape(N, -1, group), (1 << bits) - 1
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if symmetric:
        scales = (torch.maximum(-low, high) * 2 / top).half().float()
        return scales, torch.full_like(scales, (top + 1) // 2)
    scales = ((high - low) / top).half().float()
    return scales, torch.round(-low / scales).clamp(0, top)


def linear() -> torch.nn.Linear:
    made = torch.nn.Linear(K, N, bias=False)
    made.weight.data = matrix()
    return made


def order(group: int, mixed: bool) -> torch.Tensor:
    places = torch.randperm(K, generator=torch.Generator().manual_seed(3)) if mixed else torch.arange(K)
    found = torch.empty(K, dtype=torch.int32)
    found[places] = (torch.arange(K) // group).int()
    return found


def compressed_tensors() -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "pack4-g32": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
        "pack4-asym": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
        "pack4-channel-asym": ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}),
        "pack8-channel": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
        "int8-channel": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        "int8-asym": ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
        "fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        "fp8-block": (
            "float-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}
        ),
    }  # fmt: skip
    for name, (form, settings) in cases.items():
        args = QuantizationArgs(**settings)
        weights = matrix()
        if args.strategy == "group":
            groups = weights.reshape(N, K // 32, 32)
            low, high = groups.amin(2), groups.amax(2)
        elif args.strategy == "block":
            blocks = weights.reshape(N // 16, 16, K // 32, 32)
            low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        else:
            dims = (1,) if args.strategy == "channel" else (0, 1)
            low, high = weights.amin(dims, keepdim=True), weights.amax(dims, keepdim=True)
            if args.strategy == "tensor":
                low, high = low.reshape(1), high.reshape(1)
        scales, zeros = calculate_qparams(low, high, args)
        state = {"weight": weights, "weight_scale": scales.half().float()}
        if not args.symmetric:
            state["weight_zero_point"] = zeros
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry(form)
        stored = compressor.compress(dict(state), scheme)
        expected = compressor.decompress(dict(stored), scheme)["weight"].float()
        said = QuantizationConfig(config_groups={"group_0": scheme}, format=form).to_dict()
        said = json.loads(json.dumps(said, default=str))
        halves = {part: value.half() if part == "weight_scale" else value for part, value in stored.items()}
        write(f"compressed-{name}", "compressed-tensors", said, halves, expected)


def gptqmodel() -> None:
    from gptqmodel.nn_modules.qlinear import torch as module
    from gptqmodel.utils.backend import BACKEND
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    kind = next(getattr(module, name) for name in ("TorchLinear", "TorchQuantLinear") if hasattr(module, name))
    for bits, group, symmetric, mixed, version in (
        (4, 32, True, False, 1),
        (4, 32, False, False, 1),
        (4, 32, False, True, 2),
        (4, K, True, False, 2),
        (8, 32, True, False, 1),
        (8, 32, False, False, 1),
    ):
        said = {"quant_method": "gptq", "bits": bits, "group_size": -1 if group == K else group, "sym": symmetric}
        said |= {"desc_act": mixed, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
        layer = kind(
            bits=bits, group_size=group, sym=symmetric, desc_act=mixed, in_features=K, out_features=N, bias=False,
            pack_dtype=torch.int32, backend=BACKEND.TORCH, adapter=None, register_buffers=True,
        )  # fmt: skip
        indices = order(group, mixed)
        scales, zeros = ranges(group, bits, symmetric)
        if mixed:  # by the groups as they are
            member = [matrix()[:, indices == one] for one in range(K // group)]
            low, high = (torch.stack([f(one) for one in member], 1) for f in (lambda x: x.amin(1), lambda x: x.amax(1)))
            scales = ((high - low) / 15).half().float()
            zeros = torch.round(-low / scales).clamp(0, 15)
        layer.pack_block(linear(), scales, zeros, indices)
        layer.post_init()
        layer.scales = layer.scales.float()
        expected = layer.dequantize_weight().T.float()
        if version == 1:
            from gptqmodel.quantization import QuantizeConfig

            convert_gptq_v2_to_v1_format_module(layer, QuantizeConfig(bits=bits, group_size=group))
        stored = {part: getattr(layer, part) for part in ("qweight", "qzeros", "g_idx")}
        label = f"gptq{bits}-{'sym' if symmetric else 'asym'}{'-order' if mixed else ''}-g{group}-v{version}"
        write(label, "gptqmodel", said, stored | {"scales": layer.scales.half()}, expected)


def alone(package: str) -> None:
    """Let modules of a package be imported without its ``__init__``, which asks for far more than packing needs."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations is not None
    made = types.ModuleType(package)
    made.__path__ = list(found.submodule_search_locations)
    sys.modules[package] = made


def autoawq() -> None:
    for package in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        alone(package)
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    scales, zeros = ranges(32, 4, symmetric=False)
    layer = WQLinear_GEMM.from_linear(linear(), 4, 32, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    expected = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, 32).T
    said = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    stored = {part: getattr(layer, part) for part in ("qweight", "qzeros", "scales")}
    write("awq-g32", "autoawq", said, stored, expected)


def auto_round() -> None:
    names = ("auto_round", "auto_round.utils", "auto_round.export", "auto_round.export.export_to_awq")
    for package in (*names, "auto_round_extension", "auto_round_extension.torch"):
        alone(package)
    utils: Any = sys.modules["auto_round.utils"]
    utils.get_packing_device = lambda device=None: torch.device("cpu")
    from auto_round.export.export_to_awq.utils import WQLinear_GEMM
    from auto_round_extension.torch.qlinear_torch import QuantLinear
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear as WithOffset

    base = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "int"}
    for kind, packing, symmetric in ((WithOffset, "auto_round:auto_gptq", True), (QuantLinear, "auto_round", False)):
        scales, zeros = ranges(32, 4, symmetric)
        layer = kind(4, 32, K, N, bias=False, weight_dtype=torch.float32)
        layer.device = "cpu"
        layer.pack(linear(), scales, zeros.clone(), None)
        stored = {part: getattr(layer, part) for part in ("qweight", "qzeros", "scales")}
        codes = torch.round(matrix() / scales.repeat_interleave(32, 1) + zeros.repeat_interleave(32, 1)).clamp(0, 15)
        expected = scales.repeat_interleave(32, 1) * (codes - zeros.repeat_interleave(32, 1))
        said = base | {"packing_format": packing, "sym": symmetric}
        write(f"auto-round-{'sym' if symmetric else 'asym'}", "auto-round", said, stored, expected)
    scales, zeros = ranges(32, 4, symmetric=False)
    made = WQLinear_GEMM.from_linear(linear(), 4, 32, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    codes = torch.round(matrix() / scales.repeat_interleave(32, 1) + zeros.repeat_interleave(32, 1)).clamp(0, 15)
    expected = scales.repeat_interleave(32, 1) * (codes - zeros.repeat_interleave(32, 1))
    stored = {part: getattr(made, part) for part in ("qweight", "qzeros", "scales")}
    write("auto-round-awq", "auto-round", base | {"packing_format": "auto_round:auto_awq"}, stored, expected)


def transformers() -> None:
    """MXFP4, which it reads and does not write: codes and scales are chosen here."""
    from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

    groups = matrix().reshape(N, K // 32, 32)
    exponent = torch.ceil(torch.log2(groups.abs().amax(2) / 6))
    values = torch.tensor(FP4_VALUES)
    codes = (groups / 2 ** exponent[..., None] - values[:, None, None, None]).abs().argmin(0)
    stored = {
        "w_blocks": (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)[None],
        "w_scales": (exponent + 127).to(torch.uint8)[None],
    }
    expected = convert_moe_packed_tensors(stored["w_blocks"], stored["w_scales"], dtype=torch.float32)[0].T
    write("transformers-mxfp4", "transformers", {"quant_method": "mxfp4"}, stored, expected)


LIBRARIES: Mapping[str, Callable[[], None]] = {
    "compressed-tensors": compressed_tensors,
    "gptqmodel": gptqmodel,
    "autoawq": autoawq,
    "auto-round": auto_round,
    "transformers": transformers,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or LIBRARIES:
        LIBRARIES[name]()
