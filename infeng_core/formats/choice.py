"""Which tensor is stored in which format: ``model.format``, and ``model.formats`` for single tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from infeng_core.errors import UsageError
from infeng_core.formats.quant import FormatLookup
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import layout

if TYPE_CHECKING:
    from infeng_core.plug.config import EngineConfig


@dataclass(frozen=True)
class FormatChoice:
    """``base`` for every tensor, except that the last pattern matching a tensor's name decides.

    Patterns are as in fnmatch: ``layers.*.down_proj``. The tensor ``embed`` is also the head of a model with tied
    embeddings; an untied head is ``lm_head``.
    """

    base: str
    patterns: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Return the format of one tensor."""
        matching = [format for pattern, format in self.patterns.items() if fnmatchcase(name, pattern)]
        return matching[-1] if matching else self.base

    def for_model(self, config: ModelConfig, lookup: FormatLookup) -> dict[str, str]:
        """Return the format of every tensor of a model.

        Raises UsageError for a pattern that fits no tensor, and what ``lookup`` raises for an unknown format.
        """
        names = [tensor.name for tensor in layout(config).tensors]
        for pattern, format in self.patterns.items():
            lookup(format)
            if not any(fnmatchcase(name, pattern) for name in (*names, "lm_head")):
                known = "embed, lm_head, layers.*.qkv_proj, layers.*.o_proj, layers.*.gate_up_proj, layers.*.down_proj"
                raise UsageError(f"model.formats.{pattern}", "fits no tensor of the model", f"tensors are {known}")
        lookup(self.base)
        return {name: self.of(name) for name in names}


def choose(config: EngineConfig, lookup: FormatLookup) -> FormatChoice:
    """Return the choice that an engine configuration makes.

    A float ``model.format`` outranks every entry of ``model.formats`` that was given at a weaker place (argument over
    environment over manifest over default): ``--format f32`` is f32 throughout, although the default keeps embeddings
    at int8.
    """
    model, origin = config.model, config.provenance
    patterns = dict(model.formats)
    if lookup(model.format).is_float:
        strength = _strength(origin.get("model.format"))
        whole = origin.get("model.formats")
        entries = {pattern: origin.get(f"model.formats.{pattern}", whole) for pattern in patterns}
        patterns = {name: format for name, format in patterns.items() if _strength(entries[name]) >= strength}
    return FormatChoice(model.format, patterns)


def _strength(origin: str | None) -> int:
    """Rank a provenance as ``EngineConfig`` writes it."""
    if origin is None or origin == "default":
        return 0
    if origin == "argument":
        return 3
    return 2 if origin.startswith("INFENG_") else 1
