"""Tiny engines, in a cache that tests share."""

from shared_fixtures import make_engine, quiet_environment, shared_cache, tiny

__all__ = ["make_engine", "quiet_environment", "shared_cache", "tiny"]
