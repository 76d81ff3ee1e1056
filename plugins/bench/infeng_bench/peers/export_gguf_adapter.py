"""PEFT adapters as GGUF, for llama.cpp: ``PYTHON -P export_gguf_adapter.py ADAPTER_DIR MODEL OUT.gguf --type f16``.

A standalone program for an environment with the package ``gguf``, like ``export_gguf.py`` beside it, which has the
names and the order of rows. llama.cpp multiplies B(Ax) by ``adapter.lora.alpha`` over the rank, with one alpha per
file; if a tensor's scaling differs (rsLoRA, alpha_pattern), its B is multiplied by the quotient.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PREFIX = "base_model.model."
ENDS = {"q_proj": "", "k_proj": "_kv"}  # suffix of the metadata key with a projection's heads
KINDS = {"f16": np.float16, "f32": np.float32}


def neighbour(name: str) -> Any:
    """Import the file ``name`` beside this one by its path: -P keeps this folder out of sys.path."""
    spec = importlib.util.spec_from_file_location(f"infeng_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(adapter: Path) -> dict[str, dict[str, Array]]:
    """Return A (rank, inputs) and B (outputs, rank) by the name of the weight that they change.

    Raises ValueError for tensors that llama.cpp does not support: magnitudes, biases, embeddings, whole modules.
    """
    found: dict[str, dict[str, Array]] = {}
    for name, values in neighbour("export_gguf").read_safetensors(adapter):
        match = re.fullmatch(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight", name.removeprefix(PREFIX))
        if match is None:
            raise ValueError(f"tensor {name}: llama.cpp's adapters are pairs of A and B of linears only")
        found.setdefault(match["module"] + ".weight", {})[match["side"]] = values
    for name, both in found.items():
        if len(both) != 2 or both["A"].shape[0] != both["B"].shape[1]:
            raise ValueError(f"{name}: A and B do not fit together")
    if not found:
        raise ValueError(f"{adapter} has no tensor")
    return found


def scaling(config: dict[str, Any], weight: str, rank: int) -> float:
    """Return PEFT's factor of B(Ax) for the weight of this name."""
    module = weight.removesuffix(".weight")
    alpha = float(config.get("lora_alpha", 8))
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def reordered(model: Path) -> tuple[str, dict[str, int]]:
    """Return llama.cpp's name of a base's architecture, and the heads of the projections whose rows it reorders.

    model: a Hugging Face directory of a Llama, or a GGUF. Raises OSError, ValueError or KeyError otherwise.
    """
    if model.is_dir():
        shapes = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return "llama", {"q_proj": shapes["num_attention_heads"], "k_proj": shapes["num_key_value_heads"]}
    import gguf

    fields = gguf.GGUFReader(str(model)).fields
    architecture = str(fields["general.architecture"].contents())
    if architecture != "llama":
        return architecture, {}
    sizes = {name: int(fields[f"llama.attention.head_count{end}"].contents()) for name, end in ENDS.items()}
    return architecture, sizes


def export(adapter: Path, model: Path, out: Path, kind: str) -> None:
    """Write the adapter, with the rows of q and k in llama.cpp's order. Raises ValueError."""
    import gguf

    names = neighbour("export_gguf")
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    architecture, heads = reordered(model)
    if config.get("peft_type", "LORA") != "LORA" or config.get("use_dora") or config.get("fan_in_fan_out"):
        raise ValueError(f"{adapter}: llama.cpp takes plain LoRA only")
    alpha = float(config.get("lora_alpha", 8))
    writer = gguf.GGUFWriter(str(out), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, both in pairs(adapter).items():
        a, b = both["A"].astype(np.float32), both["B"].astype(np.float32)
        rank = a.shape[0]
        b = b * np.float32(scaling(config, name, rank) * rank / alpha)
        projection = name.split(".")[-2]
        if projection in heads:
            b = names.interleave_rotary(b, heads[projection])
        target = names.gguf_name(name)
        writer.add_tensor(f"{target}.lora_a", a.astype(KINDS[kind]))
        writer.add_tensor(f"{target}.lora_b", b.astype(KINDS[kind]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("model", type=Path, help="its base: a Hugging Face directory of a Llama, or a GGUF")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="f16", choices=KINDS, help="of A and B (f16)")
    options = parser.parse_args()
    try:
        export(options.adapter, options.model, options.out, options.type)
    except (OSError, ValueError, KeyError) as error:
        print(f"gguf: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
