"""The version of the core."""

__version__ = "0.1.0"
