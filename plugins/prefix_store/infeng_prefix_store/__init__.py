"""Computed prefixes on disk: ``kv_cache: {prefix_dir: FOLDER}``."""

__version__ = "0.1.0"
