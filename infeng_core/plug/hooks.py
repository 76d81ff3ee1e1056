"""The hooks of one engine's plugins, and the modules that implement them. Importing this module imports pluggy."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

import pluggy

from infeng_core.plug import hookspecs
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.hookspecs import KernelLibrary
from infeng_core.plug.markers import PROJECT, hookimpl
from infeng_core.plug.plugin import RENAMED


class _YamlLibrary:
    """Lets a plugin whose YAML names a library answer the same hook as one that finds it at run time."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    @hookimpl
    def infeng_kernel_libraries(self) -> list[KernelLibrary]:
        manifest = self.plugin.manifest
        assert manifest is not None and manifest.library is not None
        return [KernelLibrary(manifest.name, manifest.library, manifest.features)]


class _Manager(pluggy.PluginManager):
    """Lets an implementation of a hook under its older name answer the hook that took its place."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Return the options of an implementation, and the hook that it is for."""
        options = super().parse_hookimpl_opts(plugin, name)
        new = RENAMED.get(name.removeprefix("infeng_"))
        return {**options, "specname": f"infeng_{new}"} if options and new else options


class Hooks:
    """Which modules implement which hooks."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        """Know the core's hooks, and the libraries that usable plugins name in their YAML."""
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._declared: dict[str, Callable[..., Any]] = {}  # hooks of plugins
        for plugin in plugins:
            if plugin.usable and plugin.manifest and plugin.manifest.library is not None:
                self._manager.register(_YamlLibrary(plugin), name=f"{plugin.name}/library")

    @property
    def relay(self) -> Any:
        """Call the implementations of a hook in every registered module."""
        return self._manager.hook

    def declare(self, hook: Callable[..., Any]) -> None:
        """Add a hook that a plugin declares, a function that ``hookspec`` has marked."""
        name = hook.__name__
        if name not in self._declared:
            self._manager.add_hookspecs(type(name, (), {name: staticmethod(hook)}))
            self._declared[name] = hook

    def owed(self, hook: str) -> Any:
        """Return the annotation of what implementations of a hook return."""
        declared = self._declared.get(hook)
        return get_type_hints(declared)["return"] if declared else hookspecs.owed(hook)

    def has(self, plugin: str) -> bool:
        """Return whether the module of a plugin is registered."""
        return self._manager.has_plugin(plugin)

    def register(self, module: types.ModuleType, plugin: str) -> None:
        """Register the module of a plugin; raises where it implements a hook that does not exist."""
        self._manager.register(module, name=plugin)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            self._manager.unregister(name=plugin)
            raise

    def answers(self, hook: str, plugin: str, settings: Mapping[str, Any]) -> list[Any]:
        """Return the answers of the implementations of a hook in one plugin."""
        others = [p for name, p in self._manager.list_name_plugin() if name.split("/")[0] != plugin]
        found: list[Any] = self._manager.subset_hook_caller(hook, others)(settings=settings)
        return found
