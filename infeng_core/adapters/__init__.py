"""Adapters by name: what is loaded, who uses it, and what leaves the memory when something else is wanted."""
