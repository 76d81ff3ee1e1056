"""The commands ``infeng doctor`` and ``infeng plugins``."""
