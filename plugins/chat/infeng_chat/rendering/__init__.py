"""Rendering of messages to the text and token ids of a prompt."""
