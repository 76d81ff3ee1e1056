"""An environment without the settings of whoever runs the tests, and a cache that tests share."""

from shared_fixtures import quiet_environment, shared_cache

__all__ = ["quiet_environment", "shared_cache"]
