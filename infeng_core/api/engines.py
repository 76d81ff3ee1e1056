"""Names for parts of an engine: backends, schedulers, prefix stores, observers."""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
