"""INF-ENG kernels for AMX; everything is in the library that ``plugin.yaml`` names."""

__version__ = "0.1.0"
