"""Where the experts of a mixture are computed: the setting ``cuda.experts``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import UsageError
from infeng_core.api.engines import Split

GIGA = 1e9
HANDOFF = 20e-6
"""Seconds of two copies between the sides, as docs/hybrid.md assumes."""


def split_of(settings: Mapping[str, Any]) -> Split | None:
    """Return how experts are divided; None: the GPU computes all. Raises UsageError for an unknown ``cuda.experts``.

    ``settings``: the section ``cuda`` of the manifest.
    """
    word, _, seed = str(settings["experts"]).partition(":")
    if word == "gpu" and not seed:
        return None
    memory = int(settings["experts_mb"] * 1e6) or -1
    if word in ("cpu", "auto") and not seed:
        return _split(settings, memory if word == "auto" else 0)
    if word == "random" and seed.isdigit() and len(seed) < 19:
        return _split(settings, memory, int(seed))
    why = "no place for experts"
    raise UsageError(f"cuda.experts: {settings['experts']}", why, "set it to gpu, cpu, auto or random:SEED")


def _split(settings: Mapping[str, Any], memory: int, seed: int | None = None) -> Split:
    host = settings["host_gbs"] * GIGA, settings["host_gmacs"] * GIGA
    device = settings["gpu_gbs"] * GIGA, settings["gpu_gmacs"] * GIGA
    return Split(memory, host, device, settings["link_gbs"] * GIGA, HANDOFF, seed)
