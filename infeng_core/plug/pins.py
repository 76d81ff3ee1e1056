"""Plugins that have to be what they were: those of ``plugins.require``, and those of a lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from infeng_core.errors import PluginError, unknown_key_remedy
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.fingerprint import fingerprint
from infeng_core.settings import yamlfile
from infeng_core.settings.config import EngineConfig
from infeng_core.settings.schema import MapOf, Text
from infeng_core.settings.yamlfile import Document

LOCK_VERSION = 2
AGAIN = "write it again with `infeng plugins lock`"


def require(plugins: Iterable[Plugin], config: EngineConfig) -> None:
    """Raise PluginError unless every plugin that ``plugins.require`` names can be used and is what it says."""
    by_name = {plugin.name: plugin for plugin in sorted(plugins, key=lambda plugin: plugin.usable)}
    whole = config.provenance.get("plugins.require", "argument")
    for name, wanted in config.plugins.require.items():
        what = f"plugins.require.{name} ({config.provenance.get(f'plugins.require.{name}', whole)})"
        plugin = by_name.get(name)
        if plugin is None:
            raise PluginError(what, "no plugin has this name", unknown_key_remedy(name, by_name))
        if not plugin.usable or plugin.manifest is None:
            raise PluginError(what, "the plugin cannot be used", str(plugin.reason))
        remedy = f"install the {name} that is wanted, or change plugins.require"
        if "version" in wanted and not _fits(plugin.manifest.version, wanted["version"]):
            why = f"version {wanted['version']} is wanted, {plugin.manifest.version} is installed"
            raise PluginError(what, why, remedy)
        if "sha256" in wanted and wanted["sha256"] != (found := fingerprint(plugin)):
            raise PluginError(what, f"sha256 {wanted['sha256']} is wanted, {found} is installed", remedy)


def _fits(version: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)  # as pip counts what is installed
    except InvalidVersion:
        return False


def identity(plugin: Plugin) -> str:
    """Return the plugin as a lock has it: its version and sha256."""
    return f"{plugin.manifest.version if plugin.manifest else '-'} {fingerprint(plugin)}"


def require_locked(path: str, locked: Mapping[str, str], plugin: Plugin) -> None:
    """Raise PluginError unless a lock has the plugin as it is installed.

    path: of the lock, for errors. locked: the plugins in it, as ``locked_plugins`` returns them.
    """
    wanted = locked.get(plugin.name)
    remedy = "restore what was locked, or write the lock again with `infeng plugins lock`"
    if wanted is None:
        raise PluginError(f"{path}: plugin {plugin.name}", "not in the lock", remedy)
    if wanted != (found := identity(plugin)):
        raise PluginError(f"{path}: plugin {plugin.name}", f"locked as {wanted}, installed is {found}", remedy)


def read_lock(path: Path) -> Document:
    """Read a lock; raises PluginError if it is not one, ManifestError if it is not YAML."""
    document = yamlfile.read(path)
    if document.data.get("infeng_lock") != LOCK_VERSION:
        raise PluginError(str(path), f"expected infeng_lock: {LOCK_VERSION}", AGAIN)
    return document


def locked_plugins(path: str) -> dict[str, str]:
    """Return the identity of each plugin in the lock at ``path``; raises PluginError and ManifestError."""
    try:
        return MapOf(Text()).check(read_lock(Path(path)).data.get("plugins"))
    except ValueError as error:
        raise PluginError(f"{path}: plugins", str(error), AGAIN) from None
