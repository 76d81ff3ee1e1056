"""Small models, and an environment without the settings of whoever runs the tests."""

from format_parts import bases, make_model, stories260k, write_model
from shared_fixtures import own_cache, quiet_environment, third_party, tiny

__all__ = [
    "bases",
    "make_model",
    "own_cache",
    "quiet_environment",
    "stories260k",
    "third_party",
    "tiny",
    "write_model",
]
