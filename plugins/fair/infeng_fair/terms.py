"""What the settings say: weights of tenants, targets of tiers."""

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
    """How soon requests are to be answered. The sooner the first token, the higher the tier."""

    name: str
    first: float
    """Seconds from the arrival to the first token."""
    token: float | None = None
    """Seconds from one token to the next; None: whatever ``scheduler.step_ms`` gives."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant is entitled to."""

    weight: float
    tier: Tier


@dataclass(frozen=True, slots=True)
class Terms:
    """The plugin's settings, checked; times are in seconds."""

    tenants: Mapping[str, Share]
    others: Share
    quantum: float = 512.0
    """Cost, by weight, within which deadlines and not past service decide who is next."""
    burst: float = 4096.0
    """Cost, by weight, that a tenant is ahead with when it comes back."""
    group: float = 0.2
    pause: float = 0.5
    max_tenants: int = 256

    @staticmethod
    def read(settings: Mapping[str, Any]) -> Terms:
        """Return the settings as they come to a hook; raises ManifestError naming the one that is wrong."""
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
    """Read WEIGHT or WEIGHT@TIER."""
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
    """Read FIRST or FIRST/TOKEN, in milliseconds."""
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
