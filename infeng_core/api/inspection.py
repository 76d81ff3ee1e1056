"""Names for commands that show what an installation has: plugins, libraries, and the choice of kernels."""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
