"""The names that plugins may import from this wheel; everything else may change without notice."""

from infeng_peft.conversion import AdapterConversion, convert_adapter

__all__ = ["AdapterConversion", "convert_adapter"]
