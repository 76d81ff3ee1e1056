"""Quantize models with compressed-tensors and run them with transformers: ``compressed_run.py DIRECTORY...``.

Needs an environment with torch, transformers and compressed-tensors. A directory holds a model in float32, scheme.json
(``format`` and ``weights``) and prompt.npy; its model is replaced by the quantized one, and golden.npz has the logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def parameters(weight: torch.Tensor, args: QuantizationArgs) -> dict[str, torch.Tensor]:
    """Return scales, which are values of fp16, and zero points by minimum and maximum."""
    size = weight.shape[1] if args.strategy == "channel" else args.group_size
    groups = weight.reshape(len(weight), -1, size)
    scales, zeros = calculate_qparams(groups.amin(2), groups.amax(2), args)
    found = {"weight_scale": scales.half().float()}
    return found if args.symmetric else found | {"weight_zero_point": zeros}


def quantize(directory: Path) -> None:
    """Replace a model by what the library makes of it."""
    said = json.loads((directory / "scheme.json").read_text())
    args = QuantizationArgs(**said["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(said["format"])
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(directory / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value
            continue
        state = compressor.compress({"weight": value, **parameters(value, args)}, scheme)
        tensors |= {f"{name.removesuffix('weight')}{part}": kept.contiguous() for part, kept in state.items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=said["format"], quantization_status="compressed", ignore=["lm_head"]
    )
    path = directory / "config.json"
    document = json.loads(path.read_text())
    document["quantization_config"] = json.loads(json.dumps(config.to_dict(), default=str))
    path.write_text(json.dumps(document))


@torch.no_grad()
def run(directory: Path) -> None:
    """Write the logits of the prompt, (positions, vocab)."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.from_numpy(np.load(directory / "prompt.npy").astype(np.int64))
    np.savez_compressed(directory / "golden.npz", logits=model(prompt[None]).logits[0].numpy())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for source in map(Path, sys.argv[1:]):
        quantize(source)
        run(source)
