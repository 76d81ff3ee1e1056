"""Calibrated conversion: what the inputs of each linear op are like, and codes that lose least on such inputs."""
