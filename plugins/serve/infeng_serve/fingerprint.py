"""What the bytes of an answer depend on beside its call, its seeds and its adapters: who differs answers otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infeng_core.api import Engine, __version__, read_bytes
from infeng_core.api.engines import BlockAccess
from infeng_serve.model import Model
from infeng_serve.settings import Settings

Fingerprint = Mapping[str, str]
"""What counts, by its name."""

PACKAGES = ("infeng-chat", "infeng-grammar", "infeng-serve")
"""Beside the core: they make prompts of calls, say which tokens are allowed, and draw seeds."""

UNKNOWN = "not recorded"


def fingerprint_of(model: Model, settings: Settings) -> dict[str, str]:
    """Return what the answers of a server depend on. Kernels of class exact do not count: they give the same bytes."""
    engine, config, template = model.engine, model.engine.config, settings.chat_template
    return {
        "infeng-core": __version__,
        **{name: _version(name) for name in PACKAGES},
        "model": engine.model.id,  # weights, tokenizer, templates and generation_config.json
        "backend": config.backend.use,
        "numerics": _numerics(engine),
        "cache format": _cache_format(engine),
        "sampling.order": ", ".join(config.sampling.order),
        "tokenizer": f"{config.tokenizer.use}, parse_special {str(config.tokenizer.parse_special).lower()}",
        "chat template": _digest(read_bytes(Path(template))) if template else "the model's",
    }


def digest_of(fingerprint: Fingerprint) -> str:
    """Return a short name that tells one fingerprint from another; "" for one that says nothing."""
    return _digest(json.dumps(fingerprint, sort_keys=True).encode()) if fingerprint else ""


def changes(before: Fingerprint, now: Fingerprint) -> dict[str, str]:
    """Return a phrase for everything that is not as it was, by its name."""
    return {
        name: f"{name} was {_short(before.get(name, UNKNOWN))} and is {_short(now.get(name, UNKNOWN))}"
        for name in {**now, **before}
        if before.get(name) != now.get(name)
    }


def _numerics(engine: Engine) -> str:
    """Return the class of arithmetic; where kernels approximate, bytes also depend on which ones are bound."""
    numerics = engine.config.kernels.numerics
    if numerics == "exact":
        return numerics
    bound = [[line.op, line.detail, *line.rows, line.library, line.kernel] for line in engine.bound()]
    return f"{numerics}, kernels {_digest(json.dumps(bound).encode())}"


def _cache_format(engine: Engine) -> str:
    executable = engine.executable
    return executable.block_layout() if isinstance(executable, BlockAccess) else engine.config.kv_cache.dtype


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # it is run from a folder
        return UNKNOWN


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _short(value: str) -> str:
    return value[:12] if len(value) == 64 and " " not in value else value
