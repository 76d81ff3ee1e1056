"""The project's wheels by what they provide, so that an error names the one to install."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from infeng_core.errors import closest, unknown_key_remedy

WHEELS: Mapping[str, Mapping[str, str]] = {
    "backends": {"cuda": "infeng-cuda", "numpy": "infeng-numpy"},
    "calibrators": {"text": "infeng-calibrate"},
    "converters": {"artifacts": "infeng-convert"},
    "commands": {
        "adapters": "infeng-client",
        "ask": "infeng-client",
        "bench": "infeng-bench",
        "cache": "infeng-convert",
        "chat": "infeng-chat",
        "convert": "infeng-convert",
        "convert-adapter": "infeng-peft",
        "dashboard": "infeng-nightly",
        "demo": "infeng-demo",
        "doctor": "infeng-doctor",
        "models": "infeng-convert",
        "nightly": "infeng-nightly",
        "plugins": "infeng-doctor",
        "quality": "infeng-quality",
        "ray": "infeng-ray",
        "run": "infeng-run",
        "serve": "infeng-serve",
        "top": "infeng-serve",
        "unpack": "infeng-convert",
    },
    "adapter_directories": {"folders": "infeng-peft"},
    "adapter_readers": {"first_version": "infeng-peft", "gguf": "infeng-gguf", "peft": "infeng-peft"},
    "kernel_checks": {"trial": "infeng-inspect"},
    "drafters": {"ngram": "infeng-suffix", "suffix": "infeng-suffix"},
    "locators": {"gguf": "infeng-gguf", "hub": "infeng-convert"},
    "logit_processors": {
        "bad_words": "infeng-processors",
        "dry": "infeng-processors",
        "grammar": "infeng-grammar",
    },
    "model_readers": {"gguf": "infeng-gguf", "huggingface": "infeng-convert"},
    "model_writers": {"gguf": "infeng-gguf"},
    "prefix_stores": {"disk": "infeng-prefix-store"},
    "run_options": {
        "grammar": "infeng-grammar",
        "processors": "infeng-processors",
        "profile": "infeng-profile",
        "server": "infeng-client",
    },
    "quantizers": {"gptq": "infeng-calibrate", "nearest": "infeng-convert"},
    "sources": {},  # a hook of infeng-convert
    "policies": {"fair": "infeng-fair"},
    "tokenizers": {"hf": "infeng-tokenizers"},
}
"""By the kind of ``provides`` in a plugin.yaml, then by name. A test compares it with the plugins of the project."""

KERNELS: Mapping[str, tuple[str, ...]] = {
    "amx": ("amx_tile", "amx_int8", "avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "gfni"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"),
    "avx2": ("avx2", "fma", "f16c"),
    "neon": ("neon", "dotprod"),
}
"""The project's exact kernel libraries, of the wheels ``infeng-NAME``, best first, with the processor features they
need."""
CLOSE = ("onednn",)
"""Its libraries whose results are only close, which a manifest must ask for."""

OPTIONS: Mapping[str, str] = {
    "--logit-processor": "processors",
    "--profile": "profile",
    "--profile-stacks": "profile",
    "--server": "server",
    "--json-schema": "grammar",
    "--regex": "grammar",
    "--choice": "grammar",
    "--grammar": "grammar",
}
"""Options of ``run_options`` by the name of their group, for an error if no plugin provides them."""


FILES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "model_readers": {
        r"\.gguf$": ("model_readers", "gguf"),
        r"^[\w.-]+/[\w.-]+(@[\w./-]+)?:\w": ("model_readers", "gguf"),
        r"^[\w.-]+/[\w.-]+(@[\w./-]+)?$": ("locators", "hub"),
    },
    "adapter_readers": {
        r"\.gguf$": ("adapter_readers", "gguf"),
        r"(^|/)adapter_config\.json$": ("adapter_readers", "peft"),
    },
}
"""The kind and name in ``WHEELS`` for a path or a hub name: by the kind of reader, then by the first pattern of it."""

CONVERTER = ("converters", "artifacts")
"""The part for all other models that are not engine-native."""


def part_for(reference: str, kind: str) -> tuple[str, str] | None:
    """Return the kind and name of the part for a path or name of this form; None if none is known."""
    return next((part for pattern, part in FILES[kind].items() if re.search(pattern, reference)), None)


def is_of_a_wheel(kind: str, name: str) -> bool:
    """Return whether one of the project's wheels provides ``name``."""
    return name in WHEELS.get(kind, {})


def remedy(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the remedy for a ``name`` of a ``kind`` that no plugin provides; ``known``: the names that are
    provided."""
    return _remedy(name, tuple(known), WHEELS.get(kind, {}))


def kernels_remedy(name: str, known: Iterable[str]) -> str:
    """Return the remedy for a ``name`` that no installed kernel library has; ``known``: the names of those."""
    return _remedy(name, tuple(known), {library: f"infeng-{library}" for library in (*KERNELS, *CLOSE)})


def _remedy(name: str, known: Sequence[str], brought: Mapping[str, str]) -> str:
    """brought: the wheels of the project by what they bring."""
    meant = name if name in brought else closest(name, [*known, *brought])
    if meant is None or meant in known or meant not in brought:
        return unknown_key_remedy(name, known)
    return ("" if meant == name else f"did you mean `{meant}`? ") + f"install the wheel {brought[meant]}"
