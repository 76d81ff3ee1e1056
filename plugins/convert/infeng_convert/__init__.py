"""Hugging Face directories, the hub and conversion for INF-ENG."""
