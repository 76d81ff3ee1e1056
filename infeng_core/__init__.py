"""INF-ENG: a CPU-native LLM inference engine that serves many LoRA adapters in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.version import __version__

if TYPE_CHECKING:
    from infeng_core.engine import Engine
    from infeng_core.requests.output import Event
    from infeng_core.requests.request import Completion, Logprob, Request, SamplingParams
    from infeng_core.requests.stream import Stream

__all__ = ["Completion", "Engine", "Event", "Logprob", "Request", "SamplingParams", "Stream", "__version__"]

_HOMES = {
    "Completion": "requests.request",
    "Engine": "engine",
    "Event": "requests.output",
    "Logprob": "requests.request",
    "Request": "requests.request",
    "SamplingParams": "requests.request",
    "Stream": "requests.stream",
}


def __getattr__(name: str) -> Any:
    """Import the engine at first use, so that ``infeng --version`` does not import it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"infeng_core.{_HOMES[name]}"), name)
