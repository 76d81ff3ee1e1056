"""The commands ``infeng convert`` and ``infeng models``."""
