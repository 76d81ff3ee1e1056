"""The arithmetic of figures."""
