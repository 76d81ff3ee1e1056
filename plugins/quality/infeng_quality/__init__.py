"""Proof of quality: a model against its reference, token by token and task by task, with intervals."""

__version__ = "0.1.0"
