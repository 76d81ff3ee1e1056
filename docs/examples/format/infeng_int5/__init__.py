"""A weight format for INF-ENG; the library beside this file holds it."""
