"""The hook of this wheel: the backend ``numpy``."""

from __future__ import annotations

from infeng_core.api import hookimpl

from .backend import NumpyBackend


@hookimpl
def infeng_backends() -> dict[str, NumpyBackend]:
    """Return the backend by its name for ``backend.use``."""
    return {"numpy": NumpyBackend()}
