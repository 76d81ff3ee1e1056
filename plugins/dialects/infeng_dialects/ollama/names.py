"""Names of models: Ollama's clients may add the tag ``:latest``."""

from __future__ import annotations

from infeng_serve.api import ApiError
from infeng_serve.api.dialects import Context, invalid

from infeng_core.api import Adapters

TAG = ":latest"


def known(name: str, context: Context) -> str:
    """Return the name by which the server knows a model; raises ApiError 404 for an unknown one."""
    return found(name, context)[0]


def found(name: str, context: Context) -> tuple[str, Adapters | None]:
    """Return the name by which the server knows a model, and the adapter that it means; raises ApiError."""
    if not name:
        raise invalid("model", "model: it is empty; GET /api/tags lists all")
    try:
        return name, context.adapter_of(name)
    except ApiError:
        short = name.removesuffix(TAG)
        if short == name:
            raise
        return short, context.adapter_of(short)
