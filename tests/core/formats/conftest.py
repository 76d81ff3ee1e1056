"""What tests of weight formats share with those of conversion."""

from format_parts import bases, cache, make_model, stories260k, third_party, write_model

__all__ = ["bases", "cache", "make_model", "stories260k", "third_party", "write_model"]
