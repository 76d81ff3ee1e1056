"""The storage format of each tensor: ``model.format``, and ``model.formats`` for single tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from infeng_core.errors import UsageError, unknown_key_remedy
from infeng_core.formats.quant import FormatLookup, QuantFormat, misfit
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import Layout, TensorSpec, layout

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig

ROUTER = "bf16"
"""The format of routers where ``base`` is an integer format."""

BASE = ""
"""The name of the base in ``FormatChoice.defaults``."""


@dataclass(frozen=True)
class FormatChoice:
    """``base`` for every tensor, except that the last pattern matching a tensor's name decides.

    Patterns are as in fnmatch: ``layers.*.down_proj``. The tensor ``embed`` is also the head of a model with tied
    embeddings; an untied head is ``lm_head``.
    """

    base: str
    patterns: Mapping[str, str] = field(default_factory=dict)
    defaults: frozenset[str] = frozenset()  # patterns that are defaults, and BASE if the base is one

    def of(self, name: str) -> str:
        """Return the format of one tensor."""
        pattern = self.pattern_of(name)
        return self.base if pattern is None else self.patterns[pattern]

    def pattern_of(self, name: str) -> str | None:
        """Return the pattern that decides a tensor's format, or None where ``base`` does."""
        return next((pattern for pattern in reversed(list(self.patterns)) if fnmatchcase(name, pattern)), None)

    def asks(self, name: str) -> bool:
        """Return whether the format of one tensor was asked for and is no default."""
        pattern = self.pattern_of(name)
        return BASE not in self.defaults or (pattern is not None and pattern not in self.defaults)

    def for_model(self, model: ModelConfig | Layout, lookup: FormatLookup) -> dict[str, str]:
        """Return the format of every tensor of a model.

        Routers get ROUTER if ``base`` has integers and no pattern says otherwise: they are small, and rounding them
        sends rows to other experts. A tensor whose inputs cannot be grouped or rotated as in ``base`` gets the plain
        format. Raises UsageError for a pattern that fits no tensor or that asks for such a format of such a tensor,
        and the errors of ``lookup`` for an unknown format.
        """
        tensors = model.tensors if isinstance(model, Layout) else layout(model).tensors
        names = [tensor.name for tensor in tensors]
        for pattern, format in self.patterns.items():
            lookup(format)
            if not any(fnmatchcase(name, pattern) for name in (*names, "lm_head")):
                known = {_in_any_layer(name) for name in (*names, "lm_head")}
                remedy = unknown_key_remedy(pattern, known)
                raise UsageError(f"model.formats.{pattern}", "fits no tensor of the model", remedy)
        is_float = lookup(self.base).is_float
        kept = {name for name in names if is_router(name) and self.pattern_of(name) is None}
        found = {name: self.of(name) if is_float or name not in kept else ROUTER for name in names}
        return {spec.name: self._fitting(spec, lookup(found[spec.name])) for spec in tensors}

    def _fitting(self, spec: TensorSpec, format: QuantFormat) -> str:
        why = misfit(spec.name, spec.k, format)
        pattern = self.pattern_of(spec.name)
        if why and pattern is not None:
            raise UsageError(
                f"model.formats.{pattern}", f"{spec.name} cannot be {format.name}: {why}", f"say {format.stored}"
            )
        return format.stored if why else format.name


def is_router(name: str) -> bool:
    """Return whether a tensor is a router or the gate of a shared expert."""
    return name.endswith((".router", ".shared_gate"))


def choose(config: EngineConfig, lookup: FormatLookup) -> FormatChoice:
    """Return the format choice of an engine configuration.

    A float ``model.format`` outranks every entry of ``model.formats`` with a weaker origin (argument over environment
    over manifest over default): ``--format f32`` is f32 throughout, although the default keeps embeddings at int8.
    """
    model, origin = config.model, config.provenance
    patterns = dict(model.formats)
    if lookup(model.format).is_float:
        strength = _strength(origin.get("model.format"))
        whole = origin.get("model.formats")
        entries = {pattern: origin.get(f"model.formats.{pattern}", whole) for pattern in patterns}
        patterns = {name: format for name, format in patterns.items() if _strength(entries[name]) >= strength}
    whole = origin.get("model.formats")
    given = {BASE: origin.get("model.format")}
    given |= {pattern: origin.get(f"model.formats.{pattern}", whole) for pattern in patterns}
    return FormatChoice(model.format, patterns, frozenset(name for name in given if not _strength(given[name])))


def _in_any_layer(name: str) -> str:
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)


def _strength(origin: str | None) -> int:
    """Return the rank of an origin as ``EngineConfig`` writes it."""
    if origin is None or origin == "default":
        return 0
    if origin == "argument":
        return 3
    return 2 if origin.startswith("INFENG_") else 1
