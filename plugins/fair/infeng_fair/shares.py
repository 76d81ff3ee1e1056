"""The plugin's settings, parsed: weights of tenants and latency targets of tiers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infeng_core.api import ManifestError, unknown_key_remedy

MOST_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class Tier:
    """Latency targets. A tier is higher the sooner its first token is due."""

    name: str
    first: float
    """Target for the time to first token, in seconds."""
    token: float | None = None
    """Target for the time per further token, in seconds; None: ``scheduler.step_ms`` alone bounds a step."""


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's weight and tier."""

    weight: float
    tier: Tier


@dataclass(frozen=True, slots=True)
class Terms:
    """The plugin's settings, checked; times are in seconds."""

    tenants: Mapping[str, Share]
    others: Share
    quantum: float = 512.0
    """Width of a round in cost by weight: within a round, deadlines decide and not past service."""
    burst: float = 4096.0
    """Credit of a tenant that comes back, in cost by weight."""
    group: float = 0.2
    pause: float = 0.5
    max_tenants: int = 256

    @staticmethod
    def read(settings: Mapping[str, Any]) -> Terms:
        """Parse the settings that a hook gets; raises ManifestError naming the wrong one."""
        tiers = {name: _tier(name, text) for name, text in settings["tiers"].items()}
        if not tiers:
            raise ManifestError("fair.tiers", "no tier is left", 'name one: {standard: "2000"}')
        others = _share("fair.others", settings["others"], tiers, None)
        tenants = {
            name: _share(f"fair.tenants.{name}", text, tiers, others.tier) for name, text in settings["tenants"].items()
        }
        return Terms(
            tenants,
            others,
            quantum=float(settings["quantum"]),
            burst=float(settings["burst"]),
            group=settings["group_ms"] / 1000,
            pause=settings["pause_ms"] / 1000,
            max_tenants=settings["max_tenants"],
        )


def _share(where: str, text: str, tiers: Mapping[str, Tier], default: Tier | None) -> Share:
    """Parse WEIGHT or WEIGHT@TIER."""
    number, at, name = (part.strip() for part in text.partition("@"))
    weight = _number(where, number, "a weight", 'write "WEIGHT@TIER", such as "4@interactive"')
    if weight > MOST_WEIGHT:
        raise ManifestError(where, f"a weight of {weight:g}", f"it is at most {MOST_WEIGHT:g}")
    if not at and default is not None:
        return Share(weight, default)
    if name not in tiers:
        raise ManifestError(where, f"there is no tier {name!r}", unknown_key_remedy(name, tiers))
    return Share(weight, tiers[name])


def _tier(name: str, text: str) -> Tier:
    """Parse FIRST or FIRST/TOKEN, in milliseconds."""
    where, remedy = f"fair.tiers.{name}", 'write milliseconds as "FIRST/TOKEN", such as "500/100"'
    first, slash, token = (part.strip() for part in text.partition("/"))
    return Tier(
        name,
        _number(where, first, "milliseconds", remedy) / 1000,
        _number(where, token, "milliseconds", remedy) / 1000 if slash else None,
    )


def _number(where: str, text: str, what: str, remedy: str) -> float:
    number = float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text) else math.nan
    if not number > 0:
        raise ManifestError(where, f"{text!r} is not {what} above 0", remedy)
    return number
