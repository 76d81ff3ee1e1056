"""Requests: prompts, arrivals and outcomes."""
