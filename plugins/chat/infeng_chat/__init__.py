"""Conversations: chat templates, tool calls and reasoning in what a model writes, and the command ``infeng chat``."""

__version__ = "0.1.0"
