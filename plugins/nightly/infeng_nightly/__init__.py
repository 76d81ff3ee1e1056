"""Speed and quality night by night: ``infeng nightly`` and ``infeng dashboard``."""

__version__ = "0.1.0"
