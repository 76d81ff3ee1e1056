"""Names for measuring and checking kernels: native objects, problems, the machine."""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
