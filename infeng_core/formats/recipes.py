"""A recipe: the format of each tensor of a conversion, what chooses codes, and the text they are fitted to; a file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infeng_core import yamltree
from infeng_core.errors import ModelError, UsageError
from infeng_core.files import read_text
from infeng_core.formats.format_choice import FormatChoice, by_format
from infeng_core.models.typed_fields import Fields, show

NAME = "recipe.yaml"
VERSION = 1
MAX_BYTES = 4 << 20
MAX_NODES = 1 << 15  # one for each tensor, where every one has a format of its own
MAX_WORD = 200  # characters
EVERY = "*"
REMEDY = "give a recipe.yaml that a conversion wrote"
SOURCES = ("auto", "file")
"""Where calibration text comes from: drawn from the model itself, or given."""


@dataclass(frozen=True)
class Text:
    """What identifies calibration text: equal for equal token ids, cut equally."""

    source: str  # of SOURCES
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Recipe:
    """All that decides what a conversion makes of a model; equal recipes make equal bytes of equal models."""

    profile: str  # whose question it answers
    formats: Mapping[str, str]  # by pattern, the last that fits decides; EVERY is among them
    quantizer: str = "nearest"
    text: Text | None = None
    budget: float | None = None  # average bits of a weight in the layers that it was made for

    @property
    def choice(self) -> FormatChoice:
        """The formats as a conversion is given them."""
        patterns = {pattern: format for pattern, format in self.formats.items() if pattern != EVERY}
        return FormatChoice(self.formats[EVERY], patterns)

    def written(self) -> bytes:
        """Return the file, equal for equal recipes."""
        document: dict[str, Any] = {"infeng_recipe": VERSION, "profile": self.profile, "quantizer": self.quantizer}
        if self.budget is not None:
            document["budget"] = self.budget
        if self.text is not None:
            document["text"] = vars(self.text)
        document["formats"] = dict(self.formats)
        text = yaml.safe_dump(document, default_flow_style=False, sort_keys=False, width=1 << 20)
        return f"# How a model was converted: infeng convert MODEL OUT --recipe FILE does it again.\n{text}".encode()


def digest(recipe: bytes) -> str:
    """Return what stands for a recipe's file in keys."""
    return hashlib.sha256(recipe).hexdigest()


def read(path: Path) -> Recipe:
    """Read a recipe; raises UsageError whatever the file is."""
    return parse(read_text(path, MAX_BYTES, UsageError, REMEDY), path)


def parse(text: str, path: Path) -> Recipe:
    """Check a recipe's text; raises UsageError naming the key. Formats are looked up where they are used."""
    data, _ = yamltree.parse(text, path, UsageError, MAX_NODES, REMEDY)
    try:
        return _recipe(Fields(data, path, remedy=REMEDY))
    except ModelError as error:
        raise UsageError(error.what, error.why, error.remedy) from None


def patterns(formats: Mapping[str, str]) -> dict[str, str]:
    """Return patterns that give every tensor its format: EVERY for the most, ``layers.*.name`` for equal layers."""
    base = Counter(formats.values()).most_common(1)[0][0]
    grouped = {EVERY: base}
    for format, names in by_format(formats).items():
        grouped |= {name: format for name in names if format != base}
    choice = Recipe("", grouped).choice
    if all(choice.of(name) == format for name, format in formats.items()):
        return grouped
    return {EVERY: base} | {name: format for name, format in formats.items() if format != base}


def _recipe(fields: Fields) -> Recipe:
    if fields.integer("infeng_recipe", 1, 1 << 31) != VERSION:
        fields.fail("infeng_recipe", f"is not {VERSION}", "update infeng (pip install -U infeng-core)")
    fields.only("infeng_recipe", "profile", "quantizer", "budget", "text", "formats")
    formats = fields.mapping("formats")
    found = {name: _word(formats, name) for name in formats.data}
    if any(len(name) > MAX_WORD for name in found):
        formats.fail(show(max(found, key=len)), "is no pattern of a tensor's name")
    if EVERY not in found:
        formats.fail(show(EVERY), "is missing")
    budget = fields.number("budget", 1, 64) if fields.has("budget") else None
    text = _text(fields.mapping("text")) if fields.has("text") else None
    return Recipe(_word(fields, "profile"), found, _word(fields, "quantizer"), text, budget)


def _text(fields: Fields) -> Text:
    fields.only("source", "tokens", "sha256")
    source, sha256 = fields.text("source"), fields.text("sha256")
    if source not in SOURCES:
        fields.fail("source", f"is {show(source)}, not one of {', '.join(SOURCES)}")
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        fields.fail("sha256", f"is {show(sha256)}, it must be a sha256 in hexadecimal")
    return Text(source, fields.integer("tokens", 1, 1 << 40), sha256)


def _word(fields: Fields, key: str) -> str:
    word = fields.text(key)
    if not word or len(word) > MAX_WORD or not word.isprintable():
        fields.fail(show(key), f"is {show(word)}, which is no name")
    return word
