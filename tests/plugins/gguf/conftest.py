"""One cache for all tests of GGUF files, whose engines check kernels once."""

from shared_fixtures import quiet_environment, shared_cache, third_party

__all__ = ["quiet_environment", "shared_cache", "third_party"]
