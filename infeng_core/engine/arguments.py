"""Checks of arguments of an engine's methods other than requests: a wrong type is a UsageError that names it."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_core.errors import RequestError, UsageError
from infeng_core.requests.checks import is_unicode, shown
from infeng_core.requests.stream import Stream
from infeng_core.settings.config import EngineConfig
from infeng_core.telemetry.observers import Observer


def paths(model: Any, manifest: Any) -> None:
    """Check the two paths from which an engine is made."""
    for name, value in (("model", model), ("manifest", manifest)):
        if value is not None and not isinstance(value, (str, Path)):
            raise UsageError(name, f"{shown(value)} is no path", "give a text or a Path")


def mappings(**given: Any) -> None:
    """Check arguments that map texts to values."""
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise UsageError(name, f"{shown(value)} is no mapping", "give a dict")
        for key in value:
            if not isinstance(key, str):
                raise UsageError(name, f"the key {shown(key)} is no text", "name each by a text")


def configuration(config: Any) -> None:
    """Check a configuration that is passed as an object."""
    if config is not None and not isinstance(config, EngineConfig):
        raise UsageError("config", f"{shown(config)} is no EngineConfig", "use load_config")


def plugins(found: Any, config: Any) -> None:
    """Check plugins that are passed as an object."""
    from infeng_core.plug.manager import Plugins  # the first engine loads it; checks alone need not

    if found is not None and not isinstance(found, Plugins):
        raise UsageError("plugins", f"{shown(found)} are no Plugins", "use Plugins.discover")
    if found is not None and config is None:
        raise UsageError("plugins", "they are those of a configuration", "give config as well")


def observer(value: Any) -> None:
    """Check an observer."""
    if not isinstance(value, Observer):
        raise UsageError("observer", f"{shown(value)} is no Observer", "derive its class from Observer")


def speculation(text: Any) -> None:
    """Check the type of ``speculate``."""
    if text is not None and not isinstance(text, str):
        raise UsageError("speculate", f"{shown(text)} is no text", 'write "ngram" or "ngram:4"')


def callback(name: str, value: Any) -> None:
    """Check a callback, a function or None."""
    if value is not None and not callable(value):
        raise UsageError(name, f"{shown(value)} cannot be called", "give a function, or leave it out")


def count(name: str, value: Any, low: int, high: int = 2**63 - 1) -> int:
    """Return a number of something."""
    try:
        number = operator.index(value)
    except Exception:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise UsageError(name, f"{shown(value)} is not an integer from {low} to {high}", "give one")
    return number


def flag(name: str, value: Any) -> None:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise UsageError(name, f"{shown(value)} is neither true nor false", "give True or False")


def stream(value: Any) -> Stream:
    """Return a stream of ``Engine.submit``."""
    if not isinstance(value, Stream):
        raise UsageError("stream", f"{shown(value)} is none", "give what submit() returned")
    return value


def ready(value: Any) -> None:
    """Check the queue for outputs with events: a failure in a step would end every request."""
    if value is not None and not isinstance(value, deque):
        raise UsageError("ready", f"{shown(value)} is no deque", "give a collections.deque, or leave it out")


def text(value: Any) -> str:
    """Return a text to tokenize."""
    if not isinstance(value, str):
        raise RequestError("text", f"{shown(value)} is not one", "give a text")
    if not is_unicode(value):
        raise RequestError("text", "it is not valid Unicode", "give text, decoded from UTF-8")
    return value
