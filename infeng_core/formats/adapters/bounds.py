"""Bounds of adapters, for those who check one before anything of it is read."""

MAX_RANK = 256
"""The largest rank of one projection."""

MAX_MAGNITUDE = 2.0**63
"""Of what an adapter adds: the norm that follows takes squares, which float32 holds up to 2**128."""
