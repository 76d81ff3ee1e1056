"""Logit processors that few requests name: DRY against repetitions, and bad words."""

__version__ = "0.1.0"
