"""Schedulers, routers and placements of experts, simulated on a virtual clock without a model."""

__version__ = "0.1.0"
