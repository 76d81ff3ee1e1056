"""Where models that were converted on the fly are kept."""

from __future__ import annotations

import os
from pathlib import Path

from infeng_core.errors import ResourceError


def cache_root() -> Path:
    """Return ``$INFENG_CACHE``, else ``$XDG_CACHE_HOME/infeng``, else ``~/.cache/infeng``."""
    for variable, sub in (("INFENG_CACHE", ""), ("XDG_CACHE_HOME", "infeng")):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / sub
    try:
        return Path.home() / ".cache" / "infeng"
    except RuntimeError:
        raise ResourceError("the model cache", "this user has no home directory", "set INFENG_CACHE") from None


def cached_model(key: str) -> Path:
    """Return the directory in which the conversion with ``key`` is or will be."""
    return cache_root() / "models" / key
