"""Write written_configs.json beside this script: the whole config.json that transformers writes for every family.

PYTHONPATH=tests build/torch/bin/python tests/goldens/make_configs.py

Sizes are the defaults of each class, so that every field is there. One line of the file is one config.json, by family
and, where a family has several, what is special of it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

HERE = Path(__file__).parent
FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "ministral",
    "ministral3",
    "smollm3",
    "starcoder2",
    "phi3",
    "granite",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3_text",
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "mixtral",
    "granitemoe",
    "gpt_oss",
)
WRAPPED = ("gemma3", "mistral3", "qwen3_vl")
WINDOWS = {"use_sliding_window": True, "sliding_window": 4096}
VARIANTS: dict[str, dict[str, Any]] = {
    "qwen2, windows": {**WINDOWS, "max_window_layers": 8},
    "qwen3, windows": {**WINDOWS, "max_window_layers": 8},
    "qwen3_moe, windows": WINDOWS,
    "qwen3_moe, some dense": {"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True},
    "smollm3, windows": WINDOWS,
    "mistral, no windows": {"sliding_window": None},
}
WITHIN = {"starcoder2": {"bos_token_id": 0, "eos_token_id": 0}}
"""Published values where the class's own lie outside of its vocabulary."""
REFUSED = ("deepseek_v3", "gemma4", "qwen3_5", "nemotron_h", "qwen3_vl_moe", "granitemoehybrid", "lfm2")
"""Families that are not run, as far as this transformers has them."""


def written(model_type: str, **more: Any) -> dict[str, Any]:
    """Return the contents of config.json of a model that has the defaults and ``more``."""
    config = AutoConfig.for_model(model_type, **more)
    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) or MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type]
    if model_type in WRAPPED:
        named = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type]
    config.architectures = [named if isinstance(named, str) else named[0]]
    with tempfile.TemporaryDirectory() as scratch:
        config.save_pretrained(scratch)
        found: dict[str, Any] = json.loads((Path(scratch) / "config.json").read_text())
    return found


def main() -> None:
    """Write the file."""
    made = {name: written(name, **WITHIN.get(name, {})) for name in (*FAMILIES, *WRAPPED)}
    made |= {name: written(name.partition(",")[0], **more) for name, more in VARIANTS.items()}
    for name in REFUSED:
        try:
            made[f"not run: {name}"] = written(name)
        except (KeyError, ValueError):
            print(f"{name} is not known to this transformers")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in sorted(made.items()))
    (HERE / "written_configs.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
