"""Names for readers of adapter files and for wheels that pack adapters ahead of time."""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
