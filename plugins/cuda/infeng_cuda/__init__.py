"""INF-ENG on NVIDIA GPUs: the ops of the kernel ABI in CUDA, equal to the reference byte for byte."""

__version__ = "0.1.0"
