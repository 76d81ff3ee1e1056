"""Bounds of adapters, for checks before any file is read."""

MAX_RANK = 256
"""The largest rank of one projection."""

MAX_INVOCATION = 64
"""The most tokens of an activated adapter's invocation."""

MAX_MAGNITUDE = 2.0**63
"""The largest magnitude that an adapter may add: the next norm takes squares, which float32 holds up to 2**128."""
