"""An engine's configuration, including the sections of its plugins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from infeng_core.errors import ManifestError
from infeng_core.plug.discovery import sources
from infeng_core.plug.plugin import PluginManifest, read_plugin
from infeng_core.record import Entry
from infeng_core.settings.config import EngineConfig
from infeng_core.settings.manifest import assemble


def load_config(
    manifest: Path | str | None = None,
    *,
    overrides: Mapping[str, object] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
) -> EngineConfig:
    """Assemble a configuration: argument > ``INFENG_*`` environment > manifest > default.

    ``overrides`` maps dotted keys to values; text is parsed by the key's type (``{"threads.count": "2"}``), and an
    entry of a map may be set alone (``{"kernels.force.linear": "avx512"}``). A manifest that is not a file may be the
    name of a shipped one (``"portable"``). A section may belong to a plugin, whose plugin.yaml is then its schema.
    Raises ManifestError naming file, line, key, reason and remedy.
    """
    return assemble(manifest, overrides, environ, settings_schemas, ops_of_plugins)


def settings_schemas(config: EngineConfig) -> dict[str, Mapping[str, Entry]]:
    """Return plugins' own settings by their names; plugins that cannot be read, or are disabled, have none."""
    return {manifest.name: manifest.settings for manifest in _manifests(config) if manifest.settings}


def ops_of_plugins(config: EngineConfig) -> set[str]:
    """Return the ops that plugins' libraries describe, by their plugin.yaml."""
    return {op for manifest in _manifests(config) for op in manifest.provides.get("ops", ())}


def _manifests(config: EngineConfig) -> Iterator[PluginManifest]:
    """Yield what can be read of enabled plugins."""
    for source in sources(config):
        with contextlib.suppress(ManifestError):
            manifest = read_plugin(source.path)
            if manifest.name not in config.plugins.disable:
                yield manifest
