"""Measurements of an engine in this process."""
