"""The version of this wheel."""

__version__ = "0.1.0"
