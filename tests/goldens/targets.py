"""Configurations of adapters for which PEFT was asked what they mean; targets.json has its answers in this order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "targets.json"
MODEL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 20,
}
QKV = ["q_proj", "v_proj", "k_proj"]
CONFIGS: list[dict[str, Any]] = [
    {"r": 8, "lora_alpha": 16} | changes
    for changes in (
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["layers.1.self_attn.q_proj"]},
        {"target_modules": ["self_attn.q_proj", "down_proj"]},
        {"target_modules": ["j.q_proj", "q_proj"]},
        {"target_modules": ["proj", "q_proj"]},
        {"target_modules": "all-linear"},
        {"target_modules": "ALL-Linear"},
        {"target_modules": "all-linear", "exclude_modules": ["down_proj"]},
        {"target_modules": "all-linear", "exclude_modules": r".*\.layers\.1\..*"},
        {"target_modules": "all-linear", "modules_to_save": ["lm_head"]},
        {"target_modules": r".*\.(q|k)_proj"},
        {"target_modules": r"q_proj|.*v_proj"},
        {"target_modules": r".*layers\.[02]\.self_attn\.(?!k_proj)\w+"},
        {"target_modules": r"model\.layers\.\d+\.mlp\.(?:gate|up)_proj"},
        {"target_modules": r"^(?!.*mlp).*_proj$"},
        {
            "target_modules": r"(?:.*?(?:self_attn|mlp).*?(?:k_proj|v_proj|q_proj|down_proj).*?)"
            r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn)\.(?:(?:o_proj)))"
        },
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [0, 2]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": 1},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
        {"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1]},
        {
            "target_modules": ["q_proj", "v_proj", "k_proj"],
            "rank_pattern": {"q_proj": 4, "layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {r"layers\.(0|2)\..*": 3, "v_proj": 9},
        },
        {
            "target_modules": ["q_proj", "v_proj", "k_proj"],
            "rank_pattern": {r"layers\.1\..*": 2, "q_proj": 4},
            "alpha_pattern": {"^q_proj": 5, "model.layers.0.self_attn.k_proj": 7},
        },
        {
            "target_modules": ["q_proj"],
            "rank_pattern": {
                "_proj": 3,
                "q": 5,
                "^model.layers.1.self_attn.q_proj": 6,
                "^layers.2.self_attn.q_proj": 7,
            },
        },
        {"target_modules": ["q_proj", "o_proj"], "use_rslora": True, "rank_pattern": {"o_proj": 2}, "lora_alpha": 5},
        {
            "target_modules": ["q_proj", "k_proj"],
            "exclude_modules": ["layers.0.self_attn.q_proj", "model.layers.2.self_attn.k_proj"],
        },
        {"target_modules": ["q_proj", "k_proj"], "modules_to_save": ["embed_tokens", "norm"]},
        {"target_modules": ["q_proj", "k_proj"], "modules_to_save": ["layers.0.input_layernorm"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["layernorm", "lm_head"]},
        {"target_modules": ["self_attn"]},
        {"target_modules": ["nothing"]},
        {"target_modules": ["k_proj", "model.layers.2.self_attn.q_proj"], "layers_to_transform": [0]},
        {"target_modules": ["v_proj"], "layers_to_transform": []},
        {"target_modules": ["v_proj"], "layers_to_transform": [5]},
        {"target_modules": [], "modules_to_save": ["norm"]},
        {"target_modules": ".*", "exclude_modules": ".*norm|model|.*layers.*|lm_head|.*rotary_emb|"},
    )
]


def answers() -> list[dict[str, Any] | None]:
    """Return PEFT's answers."""
    found: list[dict[str, Any] | None] = json.loads(FILE.read_text())
    return found
