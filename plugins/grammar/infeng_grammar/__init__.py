"""Structured output: a logit processor ``grammar`` for JSON schemas, regular expressions, choices and grammars."""

__version__ = "0.1.0"
