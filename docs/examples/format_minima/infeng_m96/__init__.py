"""A weight format with minima for INF-ENG; the library beside this file holds it."""
