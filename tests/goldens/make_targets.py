"""Write targets.json: which modules PEFT adapts and saves for a configuration, with rank and scaling, or its refusal.

PYTHONPATH=tests build/torch/bin/python tests/goldens/make_targets.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from goldens.targets import CONFIGS, FILE, MODEL
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import LoraLayer
from transformers import LlamaConfig, LlamaForCausalLM


def ask(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return what PEFT does with one configuration, None where it raises."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    try:
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    except ValueError:
        return None
    modules = dict(adapted.base_model.model.named_modules())
    lora = {
        name: [module.r["default"], module.scaling["default"]]
        for name, module in modules.items()
        if isinstance(module, LoraLayer)
    }
    return {"lora": lora, "saved": [n for n, m in modules.items() if type(m).__name__ == "ModulesToSaveWrapper"]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    lines = ",\n".join(json.dumps(ask(config)) for config in CONFIGS)
    Path(FILE).write_text(f"[\n{lines}\n]\n")
