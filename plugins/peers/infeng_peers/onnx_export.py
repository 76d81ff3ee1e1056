"""Exports for ONNX Runtime GenAI: ``onnx_export.py model SOURCE FOLDER KIND`` and ``adapter DIRECTORY OUT``.

The peer's interpreter runs this file, so it imports only the packages of the peer's environment. A model is exported
twice by GenAI's own model builder: ``plain``, and ``lora`` with an adapter on every linear of the layers, whose A and B
then become optional inputs of the graph, as an adapter's file needs them: without one they have rank 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PLAIN, LORA, GRAPH = "plain", "lora", "model.onnx"  # folders of an export, and the file in each
MODULES = {"attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
"""The builder's name of each part of a layer, and the linears in it."""

PEFT_PARTS = {"self_attn": "attn", "mlp": "mlp"}  # a checkpoint's name of a part -> the builder's
MOST = 1 << 32  # bytes of an adapter's file
RANK = 32  # of the adapter that marks the places; a group of the builder's int4


def main() -> int:
    """Export what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("model")
    model.add_argument("source", type=Path)
    model.add_argument("folder", type=Path)
    model.add_argument("kind", choices=("int4", "int8", "fp32"))
    adapter = commands.add_parser("adapter")
    adapter.add_argument("directory", type=Path)
    adapter.add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "model":
        export_model(arguments.source, arguments.folder, arguments.kind)
    else:
        export_adapter(arguments.directory, arguments.out)
    return 0


def export_model(source: Path, folder: Path, kind: str) -> None:
    """Export the Hugging Face directory ``source`` without and with places for adapters."""
    build(source, folder / PLAIN, kind)
    with tempfile.TemporaryDirectory() as held:
        build(source, folder / LORA, kind, placeholder(source, Path(held)))
    open_places(folder / LORA / GRAPH)


def build(source: Path, folder: Path, kind: str, adapter: Path | None = None) -> None:
    """Run the model builder; int4 is symmetric in groups of 32, its rows are rounded to int8 (accuracy level 4)."""
    options = ["prune_lm_head=true"]  # a prompt needs the scores of its last token only
    options += [f"adapter_path={adapter}"] if adapter else []
    builder = [sys.executable, "-P", "-m", "onnxruntime_genai.models.builder"]
    with tempfile.TemporaryDirectory() as cache:
        command = [*builder, "-i", str(source), "-o", str(folder), "-p", kind, "-e", "cpu", "-c", cache]
        subprocess.run([*command, "--extra_options", *options], check=True)


def placeholder(source: Path, folder: Path) -> Path:
    """Write a PEFT directory with an adapter of zeros on every linear of the layers."""
    import torch
    import transformers
    from safetensors.torch import save_file

    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(source)
        shapes = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    wanted = [module for modules in MODULES.values() for module in modules]
    zeros = {}
    for name, weight in shapes.items():
        if name.endswith(".weight") and name.split(".")[-2] in wanted:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            zeros[f"{prefix}.lora_A.weight"] = torch.zeros(RANK, weight.shape[1])
            zeros[f"{prefix}.lora_B.weight"] = torch.zeros(weight.shape[0], RANK)
    save_file(zeros, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "target_modules": wanted}
    (folder / "adapter_config.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def open_places(path: Path) -> None:
    """Replace A and B of a graph by optional inputs: matrices of rank 0 unless an adapter brings others.

    The builder rounds A and B as it rounds weights; here their products become those of float32 matrices.
    """
    import onnx
    from onnx import TensorProto, helper

    whole = onnx.load(path, load_external_data=False)
    graph, dropped = whole.graph, set()
    sizes = {one.name: tuple(one.dims) for one in graph.initializer}
    for node in graph.node:
        part = next((part for part in ("lora_A", "lora_B") if f"/{part}/MatMul" in node.name), None)
        if part is None:
            continue
        outputs, inputs = shape_of(node, sizes)
        shape = (inputs, 0) if part == "lora_A" else (0, outputs)
        free = [inputs, "rank"] if part == "lora_A" else ["rank", outputs]
        dropped.update(node.input[1:])
        name = f"{node.name.partition('/MatMul')[0].strip('/').replace('/', '.')}.weight"
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, free))
        graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, shape, []))
        product = helper.make_node("MatMul", [node.input[0], name], list(node.output), node.name)
        node.CopyFrom(product)
    kept = [one for one in graph.initializer if one.name not in dropped]
    values = [one for one in graph.value_info if "/lora_A/" not in one.name]  # their last dimension was the rank
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.value_info.extend(values)
    onnx.save(whole, path)


def shape_of(node: Any, sizes: dict[str, tuple[int, ...]]) -> tuple[int, int]:
    """Return (outputs, inputs) of a product by a constant matrix, rounded or not."""
    given = {one.name: one.i for one in node.attribute}
    if node.op_type == "MatMulNBits":
        return given["N"], given["K"]
    inputs, outputs = sizes[node.input[1]]
    return outputs, inputs


def export_adapter(directory: Path, out: Path) -> None:
    """Write a PEFT directory as a file of ONNX Runtime's adapters, float32, with the scale in B.

    Raises ValueError for an adapter that the graph of ``export_model`` has no place for.
    """
    import numpy as np
    import onnxruntime
    import torch
    from safetensors.torch import load_file

    file = directory / "adapter_model.safetensors"
    if not file.is_file() or file.stat().st_size > MOST:
        raise ValueError(f"{file} is no file of at most {MOST} bytes")
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    if config.get("use_dora") or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise ValueError(f"{directory.name}: the export takes LoRA of one rank, without DoRA")
    rank = int(config["r"])
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    tensors = {}
    for name, tensor in load_file(file).items():
        values = tensor.to(torch.float32).T.contiguous().numpy()
        part = "lora_B" if ".lora_B." in name else "lora_A"
        tensors[place(name)] = values * np.float32(scale) if part == "lora_B" else values
    written = onnxruntime.AdapterFormat()
    written.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(one) for name, one in tensors.items()})
    written.set_adapter_version(1)
    written.set_model_version(1)
    written.export_adapter(str(out))


def place(name: str) -> str:
    """Return the graph's input for a tensor of PEFT, such as base_model.model.model.layers.0.mlp.up_proj.lora_A.weight.

    Raises ValueError if there is none.
    """
    words = name.removeprefix("base_model.model.").split(".")
    if len(words) == 7 and words[:2] == ["model", "layers"] and words[3] in PEFT_PARTS and words[6] == "weight":
        part = PEFT_PARTS[words[3]]
        if words[4] in MODULES[part] and words[5] in ("lora_A", "lora_B"):
            return f"model.layers.{words[2]}.{part}.{words[4]}.{words[5]}.weight"
    raise ValueError(f"{name}: the graph has places for LoRA on the linears of the layers only")


if __name__ == "__main__":
    sys.exit(main())
