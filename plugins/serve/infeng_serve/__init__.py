"""``infeng serve``: an OpenAI-compatible server with adapters as models."""

__version__ = "0.1.0"
