"""INF-ENG kernels for AArch64; everything is in the library that ``plugin.yaml`` names."""

__version__ = "0.1.0"
