"""Weights: reading Hugging Face directories, packing them into panels, and the engine-native directory."""

from infeng_core.formats.adapters.conversion import AdapterConversion, convert_adapter
from infeng_core.formats.adapters.load import load_adapter
from infeng_core.formats.adapters.packed import PackedAdapter
from infeng_core.formats.choice import FormatChoice, by_format, choose
from infeng_core.formats.conversion import Conversion, convert
from infeng_core.formats.loader import find, load, use_families
from infeng_core.formats.quant import BUILTIN, QuantFormat
from infeng_core.formats.tensors import LoadedModel, PackedTensor

__all__ = [
    "BUILTIN",
    "AdapterConversion",
    "Conversion",
    "FormatChoice",
    "LoadedModel",
    "PackedAdapter",
    "PackedTensor",
    "QuantFormat",
    "by_format",
    "choose",
    "convert",
    "convert_adapter",
    "find",
    "load",
    "load_adapter",
    "use_families",
]
