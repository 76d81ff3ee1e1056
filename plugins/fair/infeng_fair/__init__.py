"""A scheduler that shares an engine fairly between tenants: ``scheduler: {use: fair}``."""

__version__ = "0.1.0"
