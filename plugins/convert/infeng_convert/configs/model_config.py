"""The sizes and constants of a model, read strictly from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_convert.configs.families import config_keys
from infeng_convert.configs.multimodal import text_fields, wrapped_family
from infeng_convert.configs.rope import read_rope
from infeng_convert.configs.unsupported_keys import refuse_unread
from infeng_core.api.formats import (
    Fields,
    ModelConfig,
    RopeConfig,
    check_sizes,
    describe_families,
    families,
    model_bounds,
    show,
    token_ids,
)

REMEDY = "fix the file or download the model again"
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
}


def parse_config(
    data: Mapping[str, Any], source: Path | str, generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Read a parsed Hugging Face config.json.

    ``source`` is the file's path, for errors. ``generation`` is a parsed generation_config.json: its eos ids come
    first, as in transformers. Raises ModelError naming file, key, reason and remedy.
    """
    whole = Fields(data, source, remedy=REMEDY)
    family = _family(whole)
    keys = config_keys()[family]
    fields = text_fields(whole, keys)
    getattr(keys, "check", lambda _: None)(fields)
    fields.has("quantization_config")  # readers of weights interpret it
    heads = fields.integer("num_attention_heads", 1, model_bounds.MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, model_bounds.MAX_WIDTH)
    if not fields.has("head_dim") and hidden % heads:
        fields.fail(
            "hidden_size", f"is {hidden}, not a multiple of num_attention_heads = {heads}, and head_dim is absent"
        )
    vocab = fields.integer("vocab_size", 1, model_bounds.MAX_VOCAB)
    positions = fields.integer("max_position_embeddings", 1, model_bounds.MAX_POSITIONS, 2048)
    eos = fields
    if generation is not None and generation.get("eos_token_id") is not None:
        eos = Fields(generation, Path(source).with_name("generation_config.json"), remedy=REMEDY)
    config = ModelConfig(
        family=family,
        hidden=hidden,
        intermediate=fields.integer("intermediate_size", 1, model_bounds.MAX_WIDTH),
        layers=fields.integer("num_hidden_layers", 1, model_bounds.MAX_LAYERS),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", 1, model_bounds.MAX_HEADS, heads),
        head_dim=fields.integer("head_dim", 1, model_bounds.MAX_HEAD_DIM, max(1, hidden // heads)),
        vocab=vocab,
        max_positions=positions,
        rms_eps=fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope=_rope(keys, fields, positions),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        bos_id=fields.optional_integer("bos_token_id", 0, vocab - 1),
        eos_ids=token_ids(eos, "eos_token_id", vocab),
        activation=_activation(fields),
    )
    if config.rope.kind == "dynamic":  # ``positions`` says how far the model was trained
        longest = min(int(positions * config.rope.factor), model_bounds.MAX_POSITIONS)
        config = dataclasses.replace(config, max_positions=longest)
    terms = getattr(keys, "terms", None)
    if terms is not None:
        config = dataclasses.replace(config, **terms(fields, config))
    refuse_unread(fields, family, getattr(keys, "STATES", {}))
    check_sizes(config, fields, "num_attention_heads", "num_key_value_heads")
    return config


def _rope(keys: Any, fields: Fields, positions: int) -> RopeConfig:
    """Read the rope of a family; if each kind of layer has its own, the rope of layers without a window."""
    return read_rope(
        fields,
        positions,
        layer_type="full_attention",
        names=getattr(keys, "ROPE_NAMES", {}),
        scales_q=getattr(keys, "SCALES_Q", False),
        missing=getattr(keys, "ROPE", {}),
    )


def _activation(fields: Fields) -> str:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key, "silu")
    if name not in ACTIVATIONS:
        fields.fail(key, f"is {show(name)}, supported are {', '.join(ACTIVATIONS)}", "use a model with one of these")
    fields.has("hidden_act")  # hidden_activation takes precedence
    return ACTIVATIONS[name]


ELSEWHERE = {
    "GraniteSwitchForCausalLM": (
        "is GraniteSwitchForCausalLM, a base with adapters within its checkpoint and a control token for each",
        "write them apart: infeng unpack CHECKPOINT DEST",
    )
}
"""Architectures whose parts are published as others that run: why they are refused, and the remedy."""


def _family(fields: Fields) -> str:
    """Return the family of a config.json from ``architectures``, else from ``model_type``."""
    remedy = f"use a model of a supported family: {describe_families()}"
    if fields.has("architectures"):
        names = fields.data["architectures"]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            fields.fail("architectures", f"is {show(names)}, it must be a list of names")
        for name, module in families().items():
            if names[0] in module.ARCHITECTURES:
                return name
        wrapped = {name: each for name, each in config_keys().items() if names[0] in getattr(each, "WRAPPERS", ())}
        if wrapped:
            return wrapped_family(fields, wrapped, remedy)
        if names[0] in ELSEWHERE:
            fields.fail("architectures", *ELSEWHERE[names[0]])
        name = names[0] if len(names[0]) <= 100 and names[0].isprintable() else show(names[0])
        fields.fail("architectures", f"is {name}, which this version does not run", remedy)
    model_type = fields.text("model_type")
    if model_type not in families():
        fields.fail("model_type", f"is {show(model_type)}, which this version does not run", remedy)
    return model_type
