"""Servers behind HTTP, and clients light enough to measure them."""
