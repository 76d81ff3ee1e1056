"""Requests: what they ask for, when they come, and what became of them."""
