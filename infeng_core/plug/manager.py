"""The plugins of one engine: found, filtered by processor and manifest, and queried for what they provide."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from infeng_core.errors import PluginError, closest, unknown_key_remedy
from infeng_core.log import get_logger, warn_once
from infeng_core.machine.cpu import Cpu, detect
from infeng_core.plug import wheels
from infeng_core.plug.discovery import NAMED, Plugin, find
from infeng_core.plug.hookspecs import COMMANDS, KERNEL_LIBRARIES, RUN_OPTIONS, Command, Hook, KernelLibrary
from infeng_core.plug.plugin import PluginManifest
from infeng_core.plug.reason import NOBODY, Reason
from infeng_core.settings.config import EngineConfig, default_of

if TYPE_CHECKING:
    from infeng_core.plug.hooks import Hooks

log = get_logger(__name__)

T = TypeVar("T")

Offer: TypeAlias = tuple[KernelLibrary, PluginManifest, Reason]
"""A kernel library, its plugin, and whether that plugin can be used."""


class Plugins:
    """All plugins, each with its state. Their Python is imported, and their libraries mapped, only at first use."""

    def __init__(self, config: EngineConfig, cpu: Cpu, plugins: list[Plugin]) -> None:
        """Use ``discover`` instead."""
        self.config = config
        self.cpu = cpu
        self.manifests = plugins
        self._locked: Mapping[str, str] | None = None  # the plugins of kernels.lock, once one was compared
        self._vouched: set[Plugin] = set()
        self._look_for_typos()
        if config.plugins.require:
            from infeng_core.plug import pins

            pins.require(plugins, config)
        for plugin in plugins:
            self._complain(plugin)

    @classmethod
    def discover(cls, config: EngineConfig | None = None, cpu: Cpu | None = None) -> Plugins:
        """Find all plugins without importing or loading any.

        Raises PluginError for two plugins of one name, for one that is not as ``plugins.require`` wants it and, under
        ``kernels.strict``, for a broken one.
        """
        config = config if config is not None else EngineConfig()
        cpu = cpu if cpu is not None else detect()
        return cls(config, cpu, find(config, cpu))

    @cached_property
    def _hooks(self) -> Hooks:
        from infeng_core.plug.hooks import Hooks  # and pluggy, which listing plugins and commands does without

        return Hooks(self.manifests)

    def get(self, hook: Hook[T], name: str, otherwise: Callable[[Plugin], Mapping[str, T]] = lambda plugin: {}) -> T:
        """Return the part called ``name``, or its factory; raises PluginError with the known names.

        otherwise: returns the parts that a plugin brings besides those of its hooks; called where these lack the name.
        """
        what, plugin = f"{hook.singular} {name}", self.provider(hook, name)
        found = self._ask(plugin, hook) or {}
        if name not in found and plugin.usable:
            found = otherwise(plugin)
        if name not in found and plugin.usable:
            self._fail(plugin, f"plugin.yaml promises the {what}, which it does not bring")
        if name not in found:
            raise PluginError(what, f"plugin {plugin.name} cannot be used", str(plugin.reason))
        part: T = self._checked(hook, plugin, what, found[name])
        return part

    def each(self, hook: Hook[T]) -> Iterator[tuple[str, T]]:
        """Yield the parts of usable plugins, or their factories, with their names; an invalid one causes a warning.

        The core's come first. Each plugin is imported at its turn.
        """
        for plugin in self._in_order(hook):
            for name in plugin.names(hook.kind) if plugin.usable else ():
                self._vouch(plugin, hook)
                try:
                    found = self.get(hook, name)
                except PluginError as error:
                    if plugin.usable:
                        self._fail(plugin, error.why)
                else:
                    yield name, found

    def provider(self, hook: Hook[Any], name: str) -> Plugin:
        """Return the plugin that claims to provide ``name``, a usable one if there is one; raises PluginError."""
        offering = [p for p in self.manifests if name in p.names(hook.kind)]
        usable = [p for p in offering if p.usable]
        what = f"{hook.singular} {name}"
        if not offering:
            raise PluginError(what, NOBODY, wheels.remedy(hook.kind, name, self.names(hook.kind)))
        if len(usable) > 1:
            why = f"provided by several plugins: {', '.join(p.name for p in usable)}"
            raise PluginError(what, why, "list all but one in plugins.disable")
        return usable[0] if usable else offering[0]

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return the wheel to install for a file or a name that no present reader accepts; "" if unknown.

        kind: of the reader, "model_readers" or "adapter_readers".
        is_there: whether the reference is an existing path that is not engine-native.
        """
        parts = [part for part in (wheels.part_for(reference, kind), wheels.CONVERTER if is_there else None) if part]
        return next((wheels.remedy(*part, ()) for part in parts if part[1] not in self.names(part[0])), "")

    def _in_order(self, hook: Hook[Any]) -> list[Plugin]:
        """Return the plugins in the order in which their parts are asked."""
        if hook.own == "anywhere":
            return self.manifests
        own = [p for p in self.manifests if any(wheels.is_of_a_wheel(hook.kind, name) for name in p.names(hook.kind))]
        others = [plugin for plugin in self.manifests if plugin not in own]
        return [*own, *others] if hook.own == "first" else [*others, *own]

    def answers(self, hook: Callable[..., Any]) -> dict[str, Any]:
        """Return the plugins' results for a hook that another plugin declares, by the plugins' names.

        hook: the function marked by ``hookspec``. Only plugins whose plugin.yaml lists its name under
        ``provides.hooks`` are called; one that fails causes a warning.
        """
        asked = [p for p in self.manifests if p.usable and hook.__name__ in p.names("hooks")]
        found = {plugin.name: self._ask(plugin, hook) for plugin in asked}
        return {name: answer for name, answer in found.items() if answer is not None}

    def names(self, kind: str) -> list[str]:
        """Return the names of ``kind`` ("tokenizers", "backends", ...) that usable plugins provide by their YAML."""
        return sorted({name for p in self.manifests if p.usable for name in p.names(kind)})

    def commands(self) -> dict[str, str]:
        """Return every command with its help; on a contested name a plugin of this project wins, then the first."""
        usable = [plugin.manifest.commands for plugin in self._commanders() if plugin.usable and plugin.manifest]
        return {name: help for commands in reversed(usable) for name, help in commands.items()}

    def command(self, name: str) -> Command:
        """Import the plugin that provides command ``name`` and return the command."""
        for plugin in self._commanders():
            if plugin.usable and plugin.manifest and name in plugin.manifest.commands:
                for command in self._ask(plugin, COMMANDS) or []:
                    if getattr(command, "name", None) == name:
                        held: Command = self._checked(COMMANDS, plugin, f"command {name}", command)
                        return held
                if plugin.usable:
                    self._fail(plugin, f"plugin.yaml promises the command {name}, its hooks do not bring it")
                raise PluginError(f"command {name}", f"plugin {plugin.name} cannot be used", str(plugin.reason))
        raise PluginError(f"command {name}", "no plugin brings it", wheels.remedy("commands", name, self.commands()))

    def _commanders(self) -> list[Plugin]:
        return sorted(self.manifests, key=lambda p: f"infeng-{p.name}" not in wheels.WHEELS["commands"].values())

    def kernel_libraries(self, plugins: Iterable[Plugin] | None = None) -> list[Offer]:
        """Return every kernel library that plugins offer, unopened; of an unusable plugin, only those in its YAML."""
        return [offer for plugin in (self.manifests if plugins is None else plugins) for offer in self._offers(plugin)]

    def plugin(self, name: str) -> Plugin:
        """Return the plugin called ``name``; raises PluginError with the known names."""
        for plugin in self.manifests:
            if plugin.name == name:
                return plugin
        raise PluginError(f"plugin {name}", "not installed", unknown_key_remedy(name, [p.name for p in self.manifests]))

    def settings(self, plugin: Plugin) -> Mapping[str, Any]:
        """Return the plugin's own settings: the manifest's section of its name, with defaults from its plugin.yaml."""
        declared = plugin.manifest.settings if plugin.manifest else {}
        given = self.config.extra.get(plugin.name, {})
        return MappingProxyType({key: given.get(key, default_of(made)) for key, made in declared.items()})

    def vouch(self, plugin: Plugin) -> None:
        """Raise PluginError unless the lock of the settings, if there is one, has the plugin as it is installed."""
        path = self.config.kernels.lock
        if path is not None and plugin not in self._vouched:
            from infeng_core.plug import pins

            self._locked = pins.locked_plugins(path) if self._locked is None else self._locked
            pins.require_locked(path, self._locked, plugin)
            self._vouched.add(plugin)

    def warn(self, name: str, reason: Reason, path: Path) -> None:
        """Report why a plugin, or its library at ``path``, is not used; under ``kernels.strict`` as a PluginError."""
        remedy = reason.remedy or f"repair or uninstall it, or add {name} to plugins.disable"
        if self.config.kernels.strict:
            raise PluginError(f"plugin {name}", reason.text, remedy)
        warn_once(
            log, f"plugin {name} is not used", code=reason.code, reason=reason.text, remedy=remedy, path=str(path)
        )

    def _look_for_typos(self) -> None:
        """Warn of a name in ``plugins.disable`` that resembles a plugin's, because that plugin stays enabled.

        Any other unknown name is accepted: a manifest may serve several machines.
        """
        names = [plugin.name for plugin in self.manifests]
        for name in self.config.plugins.disable:
            if name not in names and (meant := closest(name, names)) is not None:
                where = self.config.provenance.get("plugins.disable", "argument")
                remedy = f"did you mean `{meant}`?"
                if self.config.kernels.strict:
                    raise PluginError(f"plugins.disable: {name} ({where})", "no plugin has this name", remedy)
                warn_once(log, f"plugins.disable: {name} ({where}) is ignored", remedy=remedy)

    def _offers(self, plugin: Plugin) -> list[Offer]:
        manifest = plugin.manifest
        if manifest is None:
            return []
        if not plugin.usable:
            named = [KernelLibrary(manifest.name, manifest.library, manifest.features)] if manifest.library else []
            return [(library, manifest, plugin.reason) for library in named]
        imports = manifest.library is None and bool(manifest.kernels)
        libraries = self._ask(plugin, KERNEL_LIBRARIES, imports=imports) or []
        return [(library, manifest, plugin.reason) for library in libraries]

    def _checked(self, hook: Hook[Any], plugin: Plugin, what: str, found: Any) -> Any:
        """Return a part or factory whose use is checked, unless it is the core's."""
        from infeng_core.plug.hooks import checked

        return found if plugin.name == "core" else checked(hook, plugin.name, what, found)

    def _ask(self, plugin: Plugin, hook: Hook[Any] | Callable[..., Any], *, imports: bool = True) -> Any:
        """Call a hook of one plugin and merge the results; None if it cannot be used, or fails and is then marked
        broken."""
        if not plugin.usable:
            return None
        if imports:
            self._vouch(plugin, hook)
            if not self._import(plugin):
                return None
        answer, fault = self._hooks.ask(hook, plugin.name, self.settings(plugin))
        return self._fail(plugin, fault) if fault else answer

    def _vouch(self, plugin: Plugin, hook: Hook[Any] | Callable[..., Any]) -> None:
        if hook not in (COMMANDS, RUN_OPTIONS):  # no part of an engine: the command that writes locks is one
            self.vouch(plugin)

    def _import(self, plugin: Plugin) -> bool:
        assert plugin.manifest is not None
        module = plugin.manifest.python
        if module is None or self._hooks.has(plugin.name):
            return True
        try:
            if plugin.found.place == NAMED:
                _reach(plugin.source, module)
            imported = importlib.import_module(module)
            unknown = self._hooks.register(imported, plugin.name)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            self._fail(plugin, f"importing {module} raised {type(error).__name__}: {error}")
            return False
        if unknown:
            from infeng_core.plug.notes import shortened

            log.info(f"plugin {plugin.name} implements hooks that are not known here", hooks=shortened(unknown))
        return True

    def _fail(self, plugin: Plugin, why: str) -> None:
        """Mark a plugin broken; the core itself must not be."""
        plugin.reason = Reason("invalid", why, "reinstall the plugin or ask its author for a repair")
        if plugin.name == "core":
            raise PluginError("plugin core", why, "reinstall infeng-core")
        self._complain(plugin)

    def _complain(self, plugin: Plugin) -> None:
        if plugin.reason.is_fault:
            self.warn(plugin.name, plugin.reason, plugin.source)
        elif not plugin.usable:
            log.debug("plugin not used", plugin=plugin.name, reason=str(plugin.reason))


def _reach(source: Path, module: str) -> None:
    """Make a module importable that lies beside the plugin.yaml that a manifest names, or around its package."""
    top = module.partition(".")[0]
    for folder in (source.parent, source.parent.parent):
        if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # last: it hides nothing
            return
