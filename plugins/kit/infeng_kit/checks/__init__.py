"""The sections of a check, each run in a process of its own: ``section(plan, argument, teller)``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

Section = Callable[["Plan", str, "Teller"], None]
_PLACES = {
    "manifest": "manifest:check",
    "kernel": "kernels:check",
    "engine": "engine:check",
    "format": "formats:check",
    "tokenizer": "tokenizers:check",
    "policy": "policies:check",
    "processor": "processors:check",
    "observer": "observers:check",
    "backend": "backends:check",
    "family": "families:check",
    "command": "commands:check",
    "routes": "routes:check",
    "part": "others:check",
}
"""Modules and functions by section."""


def section(name: str) -> Section:
    """Return a section by its name; its module is imported at this call."""
    module, _, function = _PLACES[name].partition(":")
    found: Section = getattr(import_module(f"{__name__}.{module}"), function)
    return found
