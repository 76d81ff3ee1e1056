"""One cache for all tests of commands, whose engines check kernels once."""

from shared_fixtures import shared_cache

__all__ = ["shared_cache"]
