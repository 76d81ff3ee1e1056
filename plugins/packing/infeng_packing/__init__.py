"""Weights rounded and laid out in panels, by the core's own formats and by those of libraries."""

__version__ = "0.1.0"
