"""A text model inside a multimodal one: its part of config.json, and the names of its tensors.

transformers wraps the text model of such a checkpoint: config.json has its keys under ``text_config``, and its
tensors carry a prefix. Keys and tensors for images are ignored, since texts never use them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from infeng_core.api.formats import Fields, show

OUTER = ("bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings")
"""Keys that may stand beside ``text_config`` and apply to it."""

PREFIXES = (
    {"model.": "model.language_model.", "lm_head.": "lm_head."},
    {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},  # before transformers 4.52
)
"""Prefixes of the text model's names, each with its form in a wrapper."""


NULL_SAYS = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "head_dim")
"""Keys with a meaningful null: none, or derived from others. For any other key, null equals absence."""

OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Rope parameters of models that count positions of images by time, height and width.

A text token has one position for all three, so every part of a head turns by the same angle.
"""


def text_fields(fields: Fields, module: Any) -> Fields:
    """Return the keys that a family reads: the file's text model over the family's defaults."""
    data, prefix, defaults = fields.data, fields.prefix, getattr(module, "DEFAULTS", {})
    if is_wrapper(fields, module):
        inner = fields.mapping("text_config")
        outer = {key: data[key] for key in OUTER if data.get(key) is not None}
        data, prefix = {**outer, **inner.data}, inner.prefix
        types = getattr(module, "TEXT_TYPES", {})
        model_type = data.get("model_type")
        if isinstance(model_type, str) and model_type in types:
            defaults = {**defaults, **types[model_type]}
            data = {key: _of_texts(value) if key.startswith("rope_") else value for key, value in data.items()}
    said = {key: value for key, value in data.items() if value is not None or key in NULL_SAYS or key not in defaults}
    return Fields({**defaults, **said}, fields.source, remedy=fields.remedy, prefix=prefix)


def _of_texts(value: Any) -> Any:
    """Return rope parameters without the keys for images."""
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in OF_IMAGES}


def is_wrapper(fields: Fields, module: Any) -> bool:
    """Return whether a config.json describes a multimodal model around a text model of the family."""
    names = fields.data.get("architectures")
    return isinstance(names, list) and bool(set(names[:1]) & set(getattr(module, "WRAPPERS", ())))


def wrapped_family(fields: Fields, modules: Mapping[str, Any], remedy: str) -> str:
    """Return the family of a multimodal model's text model; ``modules`` are the families that may be wrapped."""
    inner = fields.mapping("text_config")
    model_type = inner.text("model_type", next(iter(modules)) if len(modules) == 1 else None)
    types = {also: name for name, module in modules.items() for also in getattr(module, "TEXT_TYPES", {})}
    model_type = types.get(model_type, model_type)
    if model_type not in modules:
        inner.fail("model_type", f"is {show(model_type)}, which this version does not run", remedy)
    return model_type


def prefixes(names: Collection[str], before: str = "") -> dict[str, str]:
    """Return the text model's prefixes, each with its form in the file; {} if the names are the model's own.

    before: a prefix of all names in the file.
    """
    for found in PREFIXES:
        if any(name.startswith(before + found["model."]) for name in names):
            return found
    return {}


def outside(name: str, found: Mapping[str, str]) -> str:
    """Return the name in a file of the text model's tensor or module ``name``."""
    for ours, theirs in found.items():
        if f"{name}.".startswith(ours):
            return (theirs + f"{name}.".removeprefix(ours)).removesuffix(".")
    return name


def inside(name: str, found: Mapping[str, str]) -> str:
    """Return the text model's name of a file's tensor; "" for a tensor outside the text model."""
    for ours, theirs in found.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return ""
