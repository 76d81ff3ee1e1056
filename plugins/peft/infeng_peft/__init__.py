"""Adapters that PEFT saved, for INF-ENG: read over a base, and packed ahead of time."""
