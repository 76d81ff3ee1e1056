"""The fingerprint of a server: all that an answer's bytes depend on besides its call, seeds and adapters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infeng_core.api import Engine, __version__, read_bytes
from infeng_core.api.engines import NUMERICS, BlockAccess
from infeng_serve.model import Model
from infeng_serve.settings import Settings

Fingerprint = Mapping[str, str]
"""Values by the names of what they describe."""

PACKAGES = ("infeng-chat", "infeng-grammar", "infeng-serve", "infeng-tokenizers")
"""Packages besides the core that answers depend on: they render and encode prompts, mask tokens and draw
seeds."""

UNKNOWN = "not recorded"


def fingerprint_of(model: Model, settings: Settings) -> dict[str, str]:
    """Return the fingerprint of a server. Kernels of class exact are left out, since all give the same bytes."""
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
    """Return a short digest of a fingerprint; "" for an empty one."""
    return _digest(json.dumps(fingerprint, sort_keys=True).encode()) if fingerprint else ""


def changes(before: Fingerprint, now: Fingerprint) -> dict[str, str]:
    """Return a phrase for each difference between two fingerprints, by name."""
    return {
        name: f"{name} was {_short(before.get(name, UNKNOWN))} and is {_short(now.get(name, UNKNOWN))}"
        for name in {**now, **before}
        if before.get(name) != now.get(name)
    }


def _numerics(engine: Engine) -> str:
    """Return class and revision of the arithmetic and, unless it is exact, a digest of the bound kernels."""
    numerics = engine.config.kernels.numerics
    revision = f"{numerics}, revision {NUMERICS}"
    if numerics == "exact":
        return revision
    bound = [[line.op, line.detail, *line.rows, line.library, line.kernel] for line in engine.bound()]
    return f"{revision}, kernels {_digest(json.dumps(bound).encode())}"


def _cache_format(engine: Engine) -> str:
    executable = engine.executable
    return executable.block_layout() if isinstance(executable, BlockAccess) else engine.config.kv_cache.dtype


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source folder
        return UNKNOWN


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _short(value: str) -> str:
    return value[:12] if len(value) == 64 and " " not in value else value
