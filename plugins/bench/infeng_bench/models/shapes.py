"""The config.json of known models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from infeng_convert.api import parse_config

from infeng_core.api import UsageError, read_json, unknown_key_remedy
from infeng_core.api.formats import ModelConfig

LONGEST = "max_position_embeddings"  # the key of a model's number of positions


@dataclass(frozen=True)
class Published:
    """A released model."""

    source: str  # URL of its config.json; ``config`` has the keys that determine sizes and terms
    parameters: int  # of the text model, as its release counts them
    config: Mapping[str, Any]


def _data(file: str) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(resources.files("infeng_bench").joinpath(file).read_text("utf-8"))
    return loaded


SHAPES: Mapping[str, Mapping[str, Any]] = _data("shapes.json")
"""The config.json of known shapes by name."""


@cache
def published() -> Mapping[str, Published]:
    """Return released models of every family by name; SHAPES are not among them."""
    return {name: Published(**fields) for name, fields in _data("published.json").items()}


def split(name_or_file: str | Path) -> tuple[str, int]:
    """Return ``NAME@POSITIONS`` as the name and the number of positions, 0 if there is none."""
    name, at, positions = str(name_or_file).rpartition("@")
    return (name, int(positions)) if at and positions.isdecimal() else (str(name_or_file), 0)


def lengthened(name_or_file: str, positions: int) -> str:
    """Return the name of the same shapes with room for ``positions`` positions, a power of two if it has to be raised.

    Errors as in ``hugging_face_config``.
    """
    if positions <= hugging_face_config(name_or_file).get(LONGEST, 0):
        return name_or_file
    return f"{split(name_or_file)[0]}@{1 << (positions - 1).bit_length()}"


def hugging_face_config(name_or_file: str | Path) -> dict[str, Any]:
    """Return the config.json of one of SHAPES, of a published model, or in a file.

    ``NAME@POSITIONS`` is the same with another number of positions. Raises UsageError for an unknown name or an
    unreadable file, ModelError for a config that the engine cannot run.
    """
    text, positions = split(name_or_file)
    if positions:
        return {**hugging_face_config(text), LONGEST: positions}
    if text in SHAPES:
        return dict(SHAPES[text])
    if text in published():
        return dict(published()[text].config)
    path = Path(text).expanduser()
    if path.suffix != ".json":
        remedy = f"{unknown_key_remedy(text, [*SHAPES, *published()])} A path to a config.json is taken as well"
        raise UsageError(f"synthetic model {text!r}", "there are no such shapes", remedy)
    data = read_json(path, "give a model's config.json", kind=UsageError)
    if not isinstance(data, dict):
        raise UsageError(str(path), "not a JSON object", "give a model's config.json")
    parse_config(data, path)  # raises ModelError
    return data


def model_config(name_or_file: str | Path) -> ModelConfig:
    """Return the sizes of a model; arguments and errors as in ``hugging_face_config``."""
    return parse_config(hugging_face_config(name_or_file), f"{name_or_file}")
