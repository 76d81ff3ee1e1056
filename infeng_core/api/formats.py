"""Further names that readers, writers and quantizers of models and adapters may import."""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
