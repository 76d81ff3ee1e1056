"""PEFT adapters as GGUF, for llama.cpp: ``PYTHON -P export_gguf_adapter.py ADAPTER_DIR MODEL OUT.gguf --type f16``.

A program of its own that runs where the package ``gguf`` is, like ``export_gguf.py`` beside it, which knows the names
and the order of rows. llama.cpp multiplies B(Ax) by ``adapter.lora.alpha`` over the rank, one alpha for the whole file:
where a tensor's scaling differs from that (rsLoRA, patterns), the difference goes into its B.
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
ENDS = {"q_proj": "", "k_proj": "_kv"}  # of the key that has a projection's heads
KINDS = {"f16": np.float16, "f32": np.float32}


def neighbour(name: str) -> Any:
    """Return the module in the file ``name`` beside this one: this folder is on no path that is searched."""
    spec = importlib.util.spec_from_file_location(f"infeng_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(adapter: Path) -> dict[str, dict[str, Array]]:
    """Return A (rank, inputs) and B (outputs, rank) by the name of the weight that they change.

    Raises ValueError for what llama.cpp has nothing for: DoRA's magnitudes, biases, embeddings, whole modules.
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
    """Return what PEFT multiplies B(Ax) by for the weight of this name."""
    module = weight.removesuffix(".weight")
    alpha = float(config.get("lora_alpha", 8))
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def reordered(model: Path) -> tuple[str, dict[str, int]]:
    """Return llama.cpp's name of a base's architecture, and the heads of the projections whose rows it reorders.

    model: a Hugging Face directory of a Llama, or a GGUF. Raises OSError, ValueError or KeyError where neither is.
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
    """Write the adapter; q and k get the order of rows that their weights have in llama.cpp. Raises ValueError."""
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
