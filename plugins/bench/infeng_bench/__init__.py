"""Measurements of kernels, of the engine and of the machine: the command `infeng bench`."""

__version__ = "0.1.0"
