"""Conversations: chat templates, parsers for tool calls and reasoning, and the command ``infeng chat``."""

__version__ = "0.1.0"
