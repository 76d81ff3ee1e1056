"""INF-ENG linears through oneDNN; everything is in the library that ``plugin.yaml`` names."""

__version__ = "0.1.0"
