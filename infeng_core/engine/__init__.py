"""The engine: one loop from requests to text, and the thread that runs it."""

from infeng_core.engine.engine import Engine

__all__ = ["Engine"]
