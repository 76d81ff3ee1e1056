"""The names that plugins may import from this wheel; everything else may change without notice.

``inspection of kernels and machines`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
