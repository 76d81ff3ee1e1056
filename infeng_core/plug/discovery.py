"""Finds the plugins: entry points of installed wheels and the files that a manifest names, nothing else.

Nothing is imported. The working directory is never searched.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from infeng_core import _native
from infeng_core.errors import ManifestError, PluginError
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.kept import kept
from infeng_core.plug.plugin import API_VERSION, PluginManifest, read_plugin, show_api
from infeng_core.plug.reason import READY, Reason, unmet
from infeng_core.record import Record
from infeng_core.settings.config import EngineConfig

GROUP = "infeng.plugins"
NAMED = "plugins.paths"  # the origin of plugins that a manifest names
CORE = Path(__file__).parent.parent / "plugin.yaml"


class Source(Record):
    """The supposed place of a plugin.yaml."""

    name: str  # used until the file is read
    path: Path
    wheel: Path | None = None  # its metadata
    place: str = "entry point"  # the origin, without a wheel

    @property
    def origin(self) -> str:
        """The wheel and its version, "infeng-avx512 0.1.0", else ``place``. The wheel's metadata are read only here."""
        if self.wheel is None:
            return self.place
        from importlib.metadata import Distribution

        found = Distribution.at(self.wheel)
        return f"{found.name} {found.version}"


class Plugin:
    """A plugin that was found, and whether it can be used."""

    def __init__(self, name: str, found: Source, manifest: PluginManifest | None, reason: Reason) -> None:
        """Take the facts as they are found."""
        self.name = name
        self.found = found
        self.manifest = manifest
        self.reason = reason

    @property
    def origin(self) -> str:
        """The origin: a wheel with its version, or NAMED."""
        return self.found.origin

    @property
    def source(self) -> Path:
        """Its plugin.yaml."""
        return self.found.path

    @property
    def usable(self) -> bool:
        """Whether its Python hooks and its library may be used."""
        return self.manifest is not None and self.reason.code == "ready"

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of the parts of a kind, such as "tokenizers", that its plugin.yaml lists."""
        return () if self.manifest is None else self.manifest.provides.get(kind, ())


def find(config: EngineConfig, cpu: Cpu) -> list[Plugin]:
    """Return every plugin, the core first, the others by name.

    Raises PluginError if two enabled plugins have one name, or if the core's own file is broken.
    """
    plugins = [_read(source, config, cpu) for source in sources(config)]
    kept().save()
    core = plugins[0]
    if core.reason.code == "disabled":
        raise PluginError("plugin core", "cannot be disabled", "take it out of plugins.disable")
    if not core.usable:
        raise PluginError("plugin core", str(core.reason), "reinstall infeng-core")
    assert core.manifest is not None
    described = {**core.manifest.provides, "quant_formats": tuple(_native.WEIGHT_FORMATS)}
    core.manifest = core.manifest.replaced(provides=described)
    by_name: dict[str, Plugin] = {}
    for plugin in plugins:
        other = by_name.setdefault(plugin.name, plugin)
        if other is not plugin and "disabled" not in (other.reason.code, plugin.reason.code):
            first, second = sorted((str(other.source), str(plugin.source)))
            why = f"two plugins have this name: {first} and {second}"
            raise PluginError(f"plugin {plugin.name}", why, "uninstall one, or list the name in plugins.disable")
    return [core, *sorted(plugins[1:], key=lambda plugin: (plugin.name, str(plugin.source)))]


def sources(config: EngineConfig) -> list[Source]:
    """Return the places of all plugins, the core first."""
    found = [Source("core", CORE, place="built in"), *_wheels()]
    found += [Source(Path(path).parent.name or path, Path(path), place=NAMED) for path in config.plugins.paths]
    unique: dict[Path, Source] = {}
    for source in found:
        unique.setdefault(source.path.resolve(), source)
    return list(unique.values())


def _wheels() -> tuple[Source, ...]:
    """Return the plugins of installed wheels; the search is repeated once a folder of ``sys.path`` has changed."""
    return _wheels_in(tuple((place, _changed(place)) for place in sys.path))


@lru_cache(maxsize=4)
def _wheels_in(places: tuple[tuple[str, int], ...]) -> tuple[Source, ...]:
    return tuple(_installed())


def _changed(place: str) -> int:
    try:
        return os.stat(place or ".").st_mtime_ns  # noqa: PTH116  # "" is the working directory
    except OSError:
        return 0


def _installed() -> Iterator[Source]:
    for wheel in _installed_wheels():
        for name, value in _entries(wheel / "entry_points.txt"):
            package, _, file = value.partition(":")
            relative = Path(*package.strip().split("."), file.strip() or "plugin.yaml")
            path = wheel.parent / relative
            if not path.is_file():
                path = _editable(package.strip(), relative) or path
            yield Source(name, path, wheel)


def _installed_wheels() -> Iterator[Path]:
    """Yield the metadata folder of every installed wheel; of two with one name, the first on ``sys.path``.

    This follows ``importlib.metadata``, whose import alone takes a fifth of the time of ``infeng --help``.
    """
    seen: set[str] = set()
    for place in sys.path:
        try:
            names = sorted(os.listdir(place or "."))  # noqa: PTH208  # as sys.path has it
        except OSError:  # an archive, or a missing folder
            continue
        for name in names:
            stem, _, kind = name.rpartition(".")
            if kind not in ("dist-info", "egg-info"):
                continue
            project = re.sub(r"[-_.]+", "-", stem.partition("-")[0]).lower()
            if project not in seen:
                seen.add(project)
                yield Path(place, name)


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the group GROUP in an entry_points.txt, if there is one."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if GROUP not in text:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _editable(package: str, relative: Path) -> Path | None:
    """Return the file of a development install, whose package lies elsewhere; it is located without import."""
    try:
        spec = importlib.util.find_spec(package.split(".")[0])
    except (ImportError, ValueError):
        return None
    for folder in spec.submodule_search_locations or () if spec else ():
        candidate = Path(folder).parent / relative
        if candidate.is_file():
            return candidate
    return None


def _read(source: Source, config: EngineConfig, cpu: Cpu) -> Plugin:
    disabled = set(config.plugins.disable)
    try:
        manifest = read_plugin(source.path)
    except ManifestError as error:
        code = "invalid" if source.path.is_file() else "missing_file"
        reason = Reason("disabled") if source.name in disabled else Reason(code, str(error))
        return Plugin(source.name, source, None, reason)
    reason = unmet(cpu, manifest.arch, manifest.features) or READY
    if manifest.api[0] != API_VERSION:
        why = f"written for hook API {show_api(manifest.api)}, this engine has {show_api()}"
        newer, older = ("infeng-core", "the plugin") if manifest.api[0] > API_VERSION else ("the plugin", "infeng-core")
        reason = Reason("api_mismatch", why, f"update {newer}, or install an older release of {older}")
    if manifest.library is not None and not manifest.library.is_file() and reason is READY:
        reason = Reason("missing_file", f"{manifest.library} is not there", "reinstall the plugin")
    if manifest.name in disabled:
        reason = Reason(
            "disabled", f"listed in plugins.disable ({config.provenance.get('plugins.disable', 'argument')})"
        )
    return Plugin(manifest.name, source, manifest, reason)
