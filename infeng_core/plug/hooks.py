"""The hooks of one engine's plugins, and the modules that implement them. Importing this module imports pluggy."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, get_origin, get_type_hints

import pluggy

from infeng_core.plug import plugin_boundary
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.hookspecs import HOOKS, Hook, KernelLibrary
from infeng_core.plug.markers import PROJECT, hookimpl, hookspec


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
    """Leaves out implementations of hooks that nothing has declared, unless they are optional."""

    unknown: list[str]

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        found = super().parse_hookimpl_opts(plugin, name)
        caller = getattr(self.hook, (found and found.get("specname")) or name, None)
        if found is None or found["optionalhook"] or (caller is not None and caller.has_spec()):
            return found
        self.unknown.append(name)
        return None


class Hooks:
    """Which modules implement which hooks."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        """Know the core's hooks, and the libraries that usable plugins name in their YAML."""
        self._manager = _Manager(PROJECT)
        self._declared: set[str] = set()
        for hook in HOOKS:
            self.declare(hook)
        for plugin in plugins:
            if plugin.usable and plugin.manifest and plugin.manifest.library is not None:
                self._manager.register(_YamlLibrary(plugin), name=f"{plugin.name}/library")

    def declare(self, hook: Hook[Any] | Callable[..., Any]) -> None:
        """Add a hook, unless it is known; a plugin may also declare one as a function that ``hookspec`` has marked."""
        name = hook_name(hook)
        if name not in self._declared:
            function = _specification if isinstance(hook, Hook) else hook
            self._manager.add_hookspecs(type(name, (), {name: staticmethod(function)}))
            self._declared.add(name)

    def has(self, plugin: str) -> bool:
        """Return whether the module of a plugin is registered."""
        return self._manager.has_plugin(plugin)

    def register(self, module: types.ModuleType, plugin: str) -> list[str]:
        """Register the module of a plugin; return the functions for hooks that do not exist, which are left out."""
        self._manager.unknown = []
        self._manager.register(module, name=plugin)
        return self._manager.unknown

    def ask(self, hook: Hook[Any] | Callable[..., Any], plugin: str, settings: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the answers of one plugin to a hook, merged, and what is wrong with them or "" if nothing is."""
        self.declare(hook)
        name = hook_name(hook)
        owed = hook.answer() if isinstance(hook, Hook) else get_type_hints(hook)["return"]
        others = [p for one, p in self._manager.list_name_plugin() if one.split("/")[0] != plugin]
        try:
            answers = self._manager.subset_hook_caller(name, others)(settings=settings)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # panics of libraries in other languages are not Exceptions
            return None, f"{name}() raised {type(error).__name__}: {error}"
        fault = next((text for answer in answers if (text := plugin_boundary.wrong(answer, owed))), "")
        if fault:
            return None, f"the result of {name}() {fault}"
        if get_origin(owed) is dict:
            return {key: value for answer in answers for key, value in answer.items()}, ""
        return [item for answer in answers for item in answer], ""


@hookspec
def _specification(settings: Mapping[str, Any]) -> None:
    """Have the arguments of every hook."""


def hook_name(hook: Hook[Any] | Callable[..., Any]) -> str:
    """Return the name of the functions that implement a hook."""
    return hook.name if isinstance(hook, Hook) else hook.__name__


def checked(hook: Hook[Any], plugin: str, what: str, found: Any) -> Any:
    """Return a part of a plugin, or its factory, whose use is checked. what: the part in messages, "tokenizer loud"."""
    owner = plugin_boundary.Owner(plugin, what, hook.raises)
    if hook.gives == "factories":
        return partial(_make, hook, owner, found)
    return plugin_boundary.hold(found, hook.face(), owner)


def _make(hook: Hook[Any], owner: plugin_boundary.Owner, factory: Callable[..., Any], *args: Any) -> Any:
    try:
        made = factory(*args)
    except plugin_boundary.PASSING:
        raise
    except BaseException as error:
        owner.blame("making it", error)
    return plugin_boundary.hold(made, hook.face(), owner)
