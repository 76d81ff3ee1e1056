"""Quality measurements: a model compared with its reference on texts and tasks, with confidence intervals."""

__version__ = "0.1.0"
