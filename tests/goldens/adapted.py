"""Adapters on the reduced shapes: what kind each is, and where what PEFT made and computed of it is stored.

``adapters/NAME`` holds a directory as PEFT writes it, of random but trained-looking weights, and expected.npz: the
logits and greedy tokens of transformers with PEFT in binary32. make_adapters.py writes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from goldens.shapes import BIASED, LINEAR, LLAMA3, QWEN2, Case
from numpy.typing import NDArray

STEPS = 32  # greedy tokens after each prompt

HERE = Path(__file__).parent / "adapters"

QKV = ["q_proj", "k_proj", "v_proj"]
TRAINED_TOKENS = [90, 11, 3]
ALL_LINEARS = [*QKV, "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Adapted:
    """A model with one adapter, or several that are combined."""

    name: str
    base: Case
    lora: dict[str, Any] = field(default_factory=dict)  # arguments of LoraConfig; {} where others are combined
    seed: int = 0
    dtype: str = "float32"  # of the file
    keeps_base: bool = False  # whether PEFT puts the weight of an adapted embedding or head into the file as well
    combines: tuple[tuple[str, float], ...] = ()  # names of other cases with their weights
    invoked: tuple[tuple[int, ...], ...] = ()  # where the invocation of an activated one lies in each prompt
    holds: list[int] = field(default_factory=list)  # tokens that are in each prompt

    @property
    def directory(self) -> Path:
        """Return the folder of what is stored."""
        return HERE / self.name

    @property
    def adapters(self) -> list[tuple[Path, float]]:
        """Return the PEFT directories with their weights."""
        return [(HERE / name, weight) for name, weight in self.combines or ((self.name, 1.0),)]

    def fits(self, dtype: str) -> bool:
        """Return whether the adapters can be stored as ``dtype``: trained tokens cannot in 4 bits."""
        configs = [json.loads((path / "adapter_config.json").read_text()) for path, _ in self.adapters]
        return dtype != "int8t4" or not any(config.get("trainable_token_indices") for config in configs)

    @property
    def prompts(self) -> list[list[int]]:
        """Return three prompts."""
        random = np.random.RandomState(self.seed + 100)
        made = [random.randint(3, self.base.config["vocab_size"], length).tolist() for length in (37, 18, 5)]
        for prompt, places in zip(made, self.invoked, strict=False):
            for place in places:
                prompt[place : place + len(self.invocation)] = self.invocation
        for prompt in made:
            prompt[1 : 1 + len(self.holds)] = self.holds
        return made

    @property
    def invocation(self) -> list[int]:
        """Return the tokens that activate it; [] for one that acts on all tokens."""
        return list(self.lora.get("alora_invocation_tokens", []))

    def expected(self) -> Mapping[str, NDArray[Any]]:
        """Return ``logits`` (prompts, 3, vocab), ``greedy`` (prompts, steps) and ``lead`` (prompts, steps)."""
        with np.load(self.directory / "expected.npz") as file:
            return dict(file)


ADAPTED = (
    Adapted("lora", BIASED, {"r": 4, "lora_alpha": 8, "target_modules": ALL_LINEARS}, 1),
    Adapted("thin", BIASED, {"r": 1, "lora_alpha": 2, "target_modules": ["q_proj", "k_proj", "up_proj"]}, 3),
    Adapted("rslora", LINEAR, {"r": 6, "lora_alpha": 5, "use_rslora": True, "target_modules": QKV}, 1, "bfloat16"),
    Adapted("one-layer", LLAMA3, {"r": 17, "target_modules": ["up_proj"], "layers_to_transform": [1]}, 2, "float16"),
    Adapted("dora", BIASED, {"r": 3, "lora_alpha": 4, "use_dora": True, "target_modules": ALL_LINEARS}, 1),
    Adapted(
        "dora-rslora-head",
        LINEAR,
        {"r": 5, "use_rslora": True, "use_dora": True, "target_modules": ["v_proj", "lm_head"]},
        2,
        "bfloat16",
    ),
    Adapted(
        "patterns",
        LINEAR,
        {
            "r": 3,
            "lora_alpha": 6,
            "target_modules": ALL_LINEARS,
            "rank_pattern": {"down_proj": 2, "layers.1.self_attn.q_proj": 9, r"layers\.[02]\.mlp\.gate_proj": 1},
            "alpha_pattern": {"v_proj": 2, "layers.1.self_attn.q_proj": 20},
        },
        2,
        "bfloat16",
    ),
    Adapted("bias-all", BIASED, {"r": 2, "bias": "all", "target_modules": ["k_proj", "down_proj"]}, 1),
    Adapted("bias-lora-only", BIASED, {"r": 2, "bias": "lora_only", "target_modules": ["q_proj", "up_proj"]}, 1),
    Adapted("lora-bias", LINEAR, {"r": 4, "lora_bias": True, "target_modules": ["q_proj", "o_proj", "gate_proj"]}, 1),
    Adapted("embedding", LLAMA3, {"r": 5, "target_modules": ["embed_tokens", "k_proj"]}, 1, keeps_base=True),
    Adapted("head", LLAMA3, {"r": 4, "lora_alpha": 6, "target_modules": ["lm_head", "o_proj"]}, 4, "bfloat16"),
    Adapted(
        "saved",
        LINEAR,
        {
            "r": 2,
            "target_modules": ["v_proj"],
            "modules_to_save": ["embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm"],
        },
        1,
        "float16",
    ),
    Adapted(
        "saved-embedding",
        LLAMA3,
        {"r": 2, "target_modules": ["down_proj"], "modules_to_save": ["embed_tokens"]},
        1,
        "bfloat16",
    ),
    Adapted(
        "saved-head", LLAMA3, {"r": 2, "target_modules": ["gate_proj"], "modules_to_save": ["lm_head"]}, 4, "bfloat16"
    ),
    Adapted("qv", QWEN2, {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}, 1, "bfloat16"),
    Adapted(
        "trained-biases",
        QWEN2,
        {
            "r": 2,
            "bias": "all",
            "target_modules": ["gate_proj", "k_proj"],
            "modules_to_save": ["norm", "input_layernorm"],
        },
        1,
        "bfloat16",
    ),
    Adapted(
        "dora-qko", QWEN2, {"r": 4, "use_dora": True, "target_modules": ["q_proj", "k_proj", "o_proj"]}, 1, "bfloat16"
    ),
    Adapted(
        "tokens-tied",
        LLAMA3,
        {
            "r": 3,
            "target_modules": ["q_proj", "up_proj"],
            "trainable_token_indices": TRAINED_TOKENS,
        },
        2,
        "bfloat16",
        holds=TRAINED_TOKENS,
    ),
    Adapted(
        "tokens-dora",
        LINEAR,
        {
            "r": 2,
            "use_dora": True,
            "target_modules": ["v_proj", "down_proj"],
            "trainable_token_indices": {"embed_tokens": TRAINED_TOKENS, "lm_head": [40, 4]},
        },
        2,
        holds=TRAINED_TOKENS,
    ),
    Adapted("combined", BIASED, seed=1, combines=(("lora", 0.5), ("thin", -1.25))),
    Adapted("combined-dora", BIASED, seed=1, combines=(("lora", 0.5), ("dora", 1.0))),
)

ACTIVATED = (
    Adapted(
        "activated",
        BIASED,
        {"r": 4, "lora_alpha": 8, "target_modules": ALL_LINEARS, "alora_invocation_tokens": [7, 5, 9]},
        1,
        invoked=((5, 21), (15,), ()),  # twice; at the end; not at all
    ),
    Adapted(
        "activated-head",
        LINEAR,
        {
            "r": 5,
            "use_rslora": True,
            "lora_bias": True,
            "target_modules": ["v_proj", "o_proj", "gate_proj", "lm_head"],
            "alora_invocation_tokens": [11, 4],
        },
        5,
        "bfloat16",
        invoked=((0,), (8,), (3,)),  # at the start; in the middle; the last tokens
    ),
    Adapted(
        "activated-by-one",
        QWEN2,
        {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"], "alora_invocation_tokens": [6]},
        4,
        invoked=((15,), (17,), (0, 2)),  # before a block's border; the last token; twice
    ),
)

VECTORS = HERE / "vectors.npz"

EMBEDDED = tuple(
    case
    for case in (*ADAPTED, *ACTIVATED)
    if case.name
    in (
        *("lora", "dora", "bias-all", "combined-dora", "activated", "activated-head", "saved", "lora-bias"),
        *("embedding", "tokens-tied", "tokens-dora"),
    )
)
"""Cases whose prompts' vectors are stored in ``VECTORS`` by name: (prompts, 2, hidden), the mean and the last state."""
