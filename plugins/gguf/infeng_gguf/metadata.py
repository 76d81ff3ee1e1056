"""Conversion of a GGUF's metadata to config.json and generation_config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import ModelError
from infeng_core.api.formats import Fields, families, show
from infeng_gguf.architectures import ARCHITECTURES, WITH_EXPERTS, Architecture
from infeng_gguf.file import GgufFile
from infeng_gguf.header import Array
from infeng_gguf.tokenizer import GgufTokenizer

BIG = 1 << 48  # the family checks its own bounds
THETA = (1e-3, 1e15)
MOST_POSITIONS = 1 << 28
MAX_EXPERTS, MAX_CHOSEN = 4096, 64
READ = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"),
    *("rope.scaling.original_context_length",),
)
ORIGINAL = "original_max_position_embeddings"
YARN = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attn_factor"}
"""Keys of rope_scaling -> suffix of the metadata key after ``rope.scaling.yarn_``."""

HARMLESS = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
USUAL = {"expert_gating_func": 1, "expert_weights_scale": 1.0}
"""Keys with the only value that has no effect: router weights are a softmax (1) without a further scale."""

SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
SAMPLING |= {"penalty_repeat": "repetition_penalty"}
FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
OF_KIND = {"": (), "llama3": (FACTORS,), "longrope": (LONG, SHORT)}
"""Kind of scaling -> tensors with divisors of rotary frequencies."""

OTHER_MODEL = "use a model of a supported architecture"


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture; raises ModelError for an unsupported one, or a file that is not a model."""
    fields = file.fields
    kind = fields.text("general.type", "model")
    if kind != "model":
        remedy = "give it with --lora NAME=FILE over its base" if kind == "adapter" else "give the model's own file"
        fields.fail("general.type", f"is {show(kind)}, which is no model", remedy)
    name = fields.text("general.architecture")
    has_experts = name in WITH_EXPERTS and fields.integer(f"{name}.expert_count", 0, BIG, 0) > 0
    found = (WITH_EXPERTS if has_experts else ARCHITECTURES).get(name)
    if found is None or found.family not in families():
        known = ", ".join(name for name, one in ARCHITECTURES.items() if one.family in families())
        fields.fail(
            "general.architecture", f"is {show(name)}, which this version does not run; it runs {known}", OTHER_MODEL
        )
    return found


def config_json(
    file: GgufFile,
    architecture: Architecture,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, NDArray[np.float32]],
) -> dict[str, Any]:
    """Return the equivalent config.json. shapes: of all tensors; factors: tensors of ``OF_KIND``, by name.

    Raises ModelError that names a missing, invalid or unsupported key.
    """
    keys = _Keys(file, architecture)
    keys.refuse_unknown()
    if "expert_count" in architecture.keys.values():
        keys.check_experts()
    for key in architecture.needed:
        keys.integer(key)
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    width = keys.integer("attention.key_length", max(1, hidden // heads))
    if keys.integer("attention.value_length", width) != width:
        keys.fail("attention.value_length", f"is not attention.key_length = {width}", OTHER_MODEL)
    if "token_embd.weight" not in shapes or len(shapes["token_embd.weight"]) != 2:
        raise ModelError(f"{file.path}", "tensor token_embd.weight is missing", "give the complete model")
    config: dict[str, Any] = {
        "architectures": [architecture.model_class],
        "model_type": architecture.family,
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": width,
        "max_position_embeddings": keys.integer("context_length"),
        architecture.epsilon[0]: keys.number(architecture.epsilon[1]),
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "rope_theta": keys.number("rope.freq_base", 10000.0, THETA),
        **{theirs: keys.value(ours) for theirs, ours in architecture.keys.items() if keys.value(ours)},
    }
    config |= architecture.derived(config)
    rotated = keys.integer("rope.dimension_count", width)
    if rotated != width:
        config["partial_rotary_factor"] = rotated / width
    scaling = _scaling(keys, config, factors)
    if scaling is not None:
        if scaling["rope_type"] == "longrope":  # its families have this length beside rope_scaling
            config |= {ORIGINAL: scaling.pop(ORIGINAL)} if ORIGINAL in scaling else {}
        more = architecture.yarn if scaling["rope_type"] == "yarn" else {}
        config["rope_scaling"] = {**scaling, **more}
    if architecture.family == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
        config["mlp_bias"] = "blk.0.ffn_up.bias" in shapes
    return config


def with_tokens(config: Mapping[str, Any], tokenizer: GgufTokenizer) -> dict[str, Any]:
    """Return the configuration with BOS and EOS ids; raises ModelError if the embedding has too few rows."""
    rows = config["vocab_size"]
    if len(tokenizer.tokens) > rows:
        why = f"holds {len(tokenizer.tokens)} tokens, token_embd.weight {rows} rows"
        tokenizer.fields.fail("tokenizer.ggml.tokens", why)
    return {**config, "bos_token_id": tokenizer.bos, "eos_token_id": list(tokenizer.ends()) or None}


def generation_json(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the equivalent generation_config.json: BOS and EOS ids, and recommended sampling parameters."""
    found = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    for ours, theirs in SAMPLING.items():
        value = file.metadata.get(f"general.sampling.{ours}")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[theirs] = _shortest(value)
    return found


class _Keys:
    """The metadata with the architecture's prefix."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self.fields = Fields(
            {key: _one(value) for key, value in file.metadata.items()},
            file.path,
            remedy="use another copy of the model",
        )
        self.prefix = f"{architecture.name}."
        self.usual = {**USUAL, **architecture.usual}
        yarn = (f"rope.scaling.yarn_{key}" for key in YARN.values())
        own = (architecture.epsilon[1], *architecture.keys.values(), *architecture.ignored)
        self.known = {*READ, *HARMLESS, *yarn, *own}

    def integer(self, key: str, default: int | None = None) -> int:
        return self.fields.integer(self.prefix + key, 1, BIG, default)

    def number(self, key: str, default: float | None = None, bounds: tuple[float, float] = (-1e30, 1e30)) -> float:
        number: float = _shortest(self.fields.number(self.prefix + key, *bounds, default))
        return number

    def text(self, key: str, default: str) -> str:
        return self.fields.text(self.prefix + key, default)

    def has(self, key: str) -> bool:
        return self.fields.has(self.prefix + key)

    def value(self, key: str) -> Any:
        return _shortest(self.fields.data.get(self.prefix + key))

    def check_experts(self) -> None:
        """Raise ModelError if the number of experts, or of experts per token, is missing or out of range."""
        count = self.fields.integer(f"{self.prefix}expert_count", 1, MAX_EXPERTS)
        self.fields.integer(f"{self.prefix}expert_used_count", 1, min(count, MAX_CHOSEN))

    def fail(self, key: str, why: str, remedy: str | None = None) -> None:
        self.fields.fail(self.prefix + key, why, remedy)

    def refuse_unknown(self) -> None:
        """Raise ModelError for an unknown key with a value that may change results."""
        for name, value in self.fields.data.items():
            key = name.removeprefix(self.prefix)
            if not name.startswith(self.prefix) or key in self.known or value in (0, False, ""):
                continue
            if not isinstance(value, Array) and value == self.usual.get(key):
                continue
            shown = "a list" if isinstance(value, Array) else show(value)
            self.fail(key, f"is {shown}, which is not run here", "use a model without it")


def _scaling(
    keys: _Keys, config: Mapping[str, Any], factors: Mapping[str, NDArray[np.float32]]
) -> dict[str, Any] | None:
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if FACTORS in factors:
        return _llama3(keys, config, factors[FACTORS])
    original = {}
    if keys.has("rope.scaling.original_context_length"):
        original[ORIGINAL] = keys.integer("rope.scaling.original_context_length")
    if factors:
        if factors.keys() != {LONG, SHORT}:
            raise ModelError(f"{keys.fields.source}", f"has one of the tensors {LONG} and {SHORT}", OTHER_MODEL)
        lists = {"long_factor": factors[LONG].tolist(), "short_factor": factors[SHORT].tolist()}
        return {"rope_type": "longrope", **lists, **original}
    if kind == "none":
        return None
    factor = keys.number("rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear")
    yarn = {theirs: f"rope.scaling.yarn_{ours}" for theirs, ours in YARN.items()} if kind == "yarn" else {}
    more = {theirs: keys.number(ours) for theirs, ours in yarn.items() if keys.has(ours)}
    return None if kind == "linear" and factor == 1.0 else {"rope_type": kind, "factor": factor, **original, **more}


def _llama3(keys: _Keys, config: Mapping[str, Any], factors: NDArray[np.float32]) -> dict[str, Any] | None:
    """Return the parameters of Llama 3's scaling that gives these divisors within float32's rounding.

    1 / divisor = (1 - s) / factor + s, with s = (original / wavelength - low) / (high - low) clamped to [0, 1].
    Published models have low 1 and high 4; ``original`` is then computed from a divisor with s between 0 and 1. Raises
    ModelError for other divisors.
    """
    width = config["head_dim"]
    sound = not width % 2 and factors.shape == (width // 2,) and np.isfinite(factors).all() and factors.min() >= 1
    if not sound:
        why = f"tensor {FACTORS} holds no divisors of {width // 2} frequencies"
        raise ModelError(f"{keys.fields.source}", why, OTHER_MODEL)
    factor = float(factors.max())
    if factor == 1.0:
        return None
    turns = config["rope_theta"] ** -(np.arange(0, width, 2) / width) / (2 * np.pi)  # per position
    smooth = np.clip((1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor), 0, 1)
    between = (smooth > 1e-3) & (smooth < 1 - 1e-3)
    near = (3 * smooth[between] + 1) / turns[between]
    guesses = [8192, *(round(float(number)) for number in near if number < MOST_POSITIONS)]
    if keys.has("rope.scaling.original_context_length"):
        guesses.insert(0, keys.integer("rope.scaling.original_context_length"))
    for original in guesses:
        s = np.clip((original * turns - 1) / 3, 0, 1)
        if np.allclose(1 / ((1 - s) / factor + s), factors, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                ORIGINAL: original,
            }
    raise ModelError(f"{keys.fields.source}", f"tensor {FACTORS} scales frequencies as Llama 3 does not", OTHER_MODEL)


def _one(value: Any) -> Any:
    """Return the number of a list that is the same for each layer; other values unchanged."""
    if isinstance(value, Array) and value.kind != 8 and 0 < value.count <= 1 << 16:
        numbers = value.numbers()
        if (numbers == numbers[0]).all():
            return numbers[0].item()
    return value


def _shortest(value: Any) -> Any:
    """Return the shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def place(path: Path, name: str) -> str:
    """Return "file: tensor name" for errors."""
    return f"{path}: tensor {name}"
