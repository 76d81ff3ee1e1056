"""Adapters by name: which are loaded, which requests use them, and which are evicted for others."""
