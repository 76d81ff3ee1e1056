"""The project's wheels by what they provide, so that an error names the one to install."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from infeng_core.errors import unknown_key_remedy

WHEELS: Mapping[str, Mapping[str, str]] = {
    "backends": {"numpy": "infeng-numpy"},
    "calibrators": {"text": "infeng-calibrate"},
    "commands": {
        "adapters": "infeng-client",
        "ask": "infeng-client",
        "bench": "infeng-bench",
        "chat": "infeng-chat",
        "convert-adapter": "infeng-peft",
        "demo": "infeng-demo",
        "quality": "infeng-quality",
        "serve": "infeng-serve",
        "top": "infeng-serve",
    },
    "adapter_readers": {"gguf": "infeng-gguf", "peft": "infeng-peft"},
    "locators": {"gguf": "infeng-gguf"},
    "logit_processors": {"grammar": "infeng-grammar"},
    "model_readers": {"gguf": "infeng-gguf"},
    "model_writers": {"gguf": "infeng-gguf"},
    "prefix_stores": {"disk": "infeng-prefix-store"},
    "run_options": {"grammar": "infeng-grammar", "server": "infeng-client"},
    "quantizers": {"gptq": "infeng-calibrate"},
    "policies": {"fair": "infeng-fair"},
}
"""By the kind of ``provides`` in a plugin.yaml, then by name. A test compares it with the plugins of the project."""

OPTIONS: Mapping[str, str] = {
    "--server": "server",
    "--json-schema": "grammar",
    "--regex": "grammar",
    "--choice": "grammar",
    "--grammar": "grammar",
}
"""Options of ``run_options`` by the name of their group, for an error where no plugin brings it."""


FILES: Mapping[str, Mapping[str, str]] = {
    "model_readers": {r"\.gguf$": "gguf", r"^[\w.-]+/[\w.-]+(@[\w./-]+)?:\w": "gguf"},
    "adapter_readers": {r"\.gguf$": "gguf", r"(^|/)adapter_config\.json$": "peft"},
}
"""Which reader is for a path or a name of the hub: by the kind of reader, then by a pattern of the path or name."""


def reader_of(reference: str, kind: str) -> str | None:
    """Return the name of the reader that is for a path or a name by its form; None where the core's are."""
    return next((name for pattern, name in FILES[kind].items() if re.search(pattern, reference)), None)


def is_of_a_wheel(kind: str, name: str) -> bool:
    """Return whether one of the project's wheels provides it."""
    return name in WHEELS.get(kind, {})


def remedy(kind: str, name: str, known: Iterable[str]) -> str:
    """Return what to do about a ``name`` of a ``kind`` that no plugin provides; ``known``: names that some provide."""
    wheel = WHEELS.get(kind, {}).get(name)
    return unknown_key_remedy(name, known) if wheel is None else f"install the wheel {wheel}"
