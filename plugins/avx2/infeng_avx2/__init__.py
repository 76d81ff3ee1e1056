"""INF-ENG kernels for AVX2; everything is in the library that ``plugin.yaml`` names."""

__version__ = "0.1.0"
