"""A text model inside of a multimodal one: its part of config.json, and the names of its tensors.

transformers wraps the text model of such a checkpoint: config.json has its keys under ``text_config``, and its tensors
carry a prefix. What belongs to images is left where it is: texts alone never reach it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from infeng_core.models.fields import Fields, show

OUTER = ("bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings")
"""Keys that may stand beside ``text_config`` and count for it."""

PREFIXES = (
    {"model.": "model.language_model.", "lm_head.": "lm_head."},
    {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},  # before transformers 4.52
)
"""What the text model's names begin with, and what they begin with in a wrapper."""


def text_fields(fields: Fields, module: Any) -> Fields:
    """Return the keys that a family reads: its defaults, below what the file says of the text model."""
    data, prefix = fields.data, fields.prefix
    if is_wrapper(fields, module):
        inner = fields.mapping("text_config")
        outer = {key: data[key] for key in OUTER if data.get(key) is not None}
        data, prefix = {**outer, **inner.data}, inner.prefix
    return Fields({**getattr(module, "DEFAULTS", {}), **data}, fields.source, remedy=fields.remedy, prefix=prefix)


def is_wrapper(fields: Fields, module: Any) -> bool:
    """Return whether a config.json is that of a multimodal model around one of the family."""
    names = fields.data.get("architectures")
    return isinstance(names, list) and bool(set(names[:1]) & set(getattr(module, "WRAPPERS", ())))


def wrapped_family(fields: Fields, modules: Mapping[str, Any], remedy: str) -> str:
    """Return the family of the text model of a multimodal one; ``modules`` are those that may stand in such a one."""
    inner = fields.mapping("text_config")
    model_type = inner.text("model_type", next(iter(modules)) if len(modules) == 1 else None)
    if model_type not in modules:
        inner.fail("model_type", f"is {show(model_type)}, which this version does not run", remedy)
    return model_type


def prefixes(names: Collection[str], before: str = "") -> dict[str, str]:
    """Return what the beginnings of a text model's names are in a file; {} where they are the model's own.

    before: what all names in the file begin with.
    """
    for found in PREFIXES:
        if any(name.startswith(before + found["model."]) for name in names):
            return found
    return {}


def outside(name: str, found: Mapping[str, str]) -> str:
    """Return the name in a file of a tensor or module of the text model."""
    for ours, theirs in found.items():
        if f"{name}.".startswith(ours):
            return (theirs + f"{name}.".removeprefix(ours)).removesuffix(".")
    return name


def inside(name: str, found: Mapping[str, str]) -> str:
    """Return what the text model calls a tensor of a file; "" for one that is not of the text model."""
    for ours, theirs in found.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return ""
