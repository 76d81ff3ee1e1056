"""The weight formats of an engine by name: the core's formats, and the formats of plugins and their libraries."""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from infeng_core.errors import PluginError
from infeng_core.formats.providers import Providers
from infeng_core.formats.quant import VARIANTS, FormatLookup, QuantFormat, formats_of_library
from infeng_core.kernels.libraries import state_of
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.hookspecs import QUANT_FORMATS
from infeng_core.plug.manager import Plugins

_found: WeakKeyDictionary[Plugins, dict[str, QuantFormat]] = WeakKeyDictionary()
"""Formats that were asked for: equal formats of one engine are one object."""


def format_lookup(plugins: Providers) -> FormatLookup:
    """Return the lookup of weight formats; it raises an InfengError that lists the known names.

    The library of a format that a plugin.yaml promises is opened when the format is asked for.
    """
    return partial(_format, plugins) if isinstance(plugins, Plugins) else partial(plugins.get, QUANT_FORMATS)


def brought_by(lookup: FormatLookup, name: str) -> str:
    """Return the plugin of a weight format, with its wheel, for errors where it is missing; "" for the core's."""
    if not isinstance(lookup, partial) or lookup.func is not _format or name in VARIANTS:
        return ""
    plugin = lookup.args[0].provider(QUANT_FORMATS, name)
    return "" if plugin.name == "core" else f"{plugin.name} ({plugin.origin})"


def _format(plugins: Plugins, name: str) -> QuantFormat:
    known = _found.setdefault(plugins, {})
    if name not in known:
        brought = partial(_formats_of_library, plugins, name)
        known[name] = VARIANTS.get(name) or plugins.get(QUANT_FORMATS, name, brought)
    return known[name]


def _formats_of_library(plugins: Plugins, name: str, plugin: Plugin) -> dict[str, QuantFormat]:
    """Return the weight formats of the library that a plugin.yaml names; only this library is opened."""
    if plugin.manifest is None or plugin.manifest.library is None:
        return {}
    plugins.vouch(plugin)
    state = state_of(plugins, plugin, plugin.manifest.library)
    if state.native is None:
        why = f"library {state.name}, which brings it, is not open"
        raise PluginError(f"{QUANT_FORMATS.singular} {name}", why, str(state.reason))
    return formats_of_library(state.native)
