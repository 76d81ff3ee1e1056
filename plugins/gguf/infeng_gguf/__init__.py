"""GGUF files for INF-ENG."""
