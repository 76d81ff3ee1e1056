"""``infeng run``: a model completes prompts on the command line of INF-ENG."""

__version__ = "0.1.0"
