"""Guesses of the next tokens from a request's text and its tenant's earlier answers: ``speculation: {use: suffix}``."""

__version__ = "0.1.0"
