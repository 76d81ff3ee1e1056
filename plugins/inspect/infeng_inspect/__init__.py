"""Kernels tried and compared before their use, a model planned without its weights, the facts of a machine."""

__version__ = "0.1.0"
