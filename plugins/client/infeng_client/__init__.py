"""A client of INF-ENG servers that needs nothing of the engine."""

__version__ = "0.1.0"
