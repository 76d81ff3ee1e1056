"""Adapters by name: what is loaded, who uses it, and what leaves the memory when something else is wanted."""

from infeng_core.adapters.named import NamedAdapters
from infeng_core.adapters.names import BASE, base_names
from infeng_core.adapters.records import AdapterChange, AdapterInfo
from infeng_core.adapters.reference import AdapterReference
from infeng_core.adapters.registry import Registry

__all__ = ["BASE", "AdapterChange", "AdapterInfo", "AdapterReference", "NamedAdapters", "Registry", "base_names"]
