"""The project's wheels by what they provide, so that an error names the one to install."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infeng_core.errors import unknown_key_remedy

WHEELS: Mapping[str, Mapping[str, str]] = {
    "backends": {"numpy": "infeng-numpy"},
    "calibrators": {"text": "infeng-calibrate"},
    "commands": {
        "ask": "infeng-client",
        "bench": "infeng-bench",
        "chat": "infeng-chat",
        "demo": "infeng-demo",
        "quality": "infeng-quality",
        "serve": "infeng-serve",
        "top": "infeng-serve",
    },
    "logit_processors": {"grammar": "infeng-grammar"},
    "prefix_stores": {"disk": "infeng-prefix-store"},
    "quantizers": {"gptq": "infeng-calibrate"},
    "schedulers": {"fair": "infeng-fair"},
}
"""By the kind of ``provides`` in a plugin.yaml, then by name. A test compares it with the plugins of the project."""


def is_of_a_wheel(kind: str, name: str) -> bool:
    """Return whether one of the project's wheels provides it."""
    return name in WHEELS.get(kind, {})


def remedy(kind: str, name: str, known: Iterable[str]) -> str:
    """Return what to do about a ``name`` of a ``kind`` that no plugin provides; ``known``: names that some provide."""
    wheel = WHEELS.get(kind, {}).get(name)
    return unknown_key_remedy(name, known) if wheel is None else f"install the wheel {wheel}"
