"""What this plugin adds: the backend ``numpy``."""

from __future__ import annotations

from infeng_core.api import hookimpl

from .backend import NumpyBackend


@hookimpl
def infeng_backends() -> dict[str, NumpyBackend]:
    """Return the backend under the name that ``backend.use`` selects."""
    return {"numpy": NumpyBackend()}
