"""What tests of weight formats share with those of conversion."""

from format_parts import bases, make_model, stories260k, write_model
from shared_fixtures import own_cache, third_party

__all__ = ["bases", "make_model", "own_cache", "stories260k", "third_party", "write_model"]
