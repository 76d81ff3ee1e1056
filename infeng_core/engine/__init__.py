"""The engine: one loop from requests to text, and who runs it."""

from infeng_core.engine.engine import Engine

__all__ = ["Engine"]
