"""Servers behind HTTP, and clients that take little CPU time."""
