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

_HOMES = {"Engine": "engine", "Event": "requests.output", "Stream": "requests.stream"}
"""The modules of names that are not of requests.request."""


def __getattr__(name: str) -> Any:
    """Import the engine at first use, so that ``infeng --version`` does not import it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"infeng_core.{_HOMES.get(name, 'requests.request')}"), name)
    except ImportError as error:
        if "import name '_native'" not in str(error):
            raise
        why = "these are sources, without the native part of the wheel: start Python with -P, or in another folder"
        raise ImportError(f"{__file__}: {why}") from None
