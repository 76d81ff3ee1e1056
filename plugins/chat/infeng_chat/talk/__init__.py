"""The command ``infeng chat``."""
