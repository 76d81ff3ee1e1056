"""The names that plugins may import from this wheel; everything else may change without notice."""

from infeng_gguf.adapter_writer import write_gguf_adapter

__all__ = ["write_gguf_adapter"]
