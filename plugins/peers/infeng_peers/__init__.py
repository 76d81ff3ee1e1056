"""Other engines beside this one, each in an environment of its own: installation, runners, comparisons."""

__version__ = "0.1.0"
