"""plugin.yaml: read as the engine reads it, and compared with what the plugin's hooks bring."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from infeng_core.api import PluginError, Plugins
from infeng_core.api.inspection import HOOKS, Plugin, abi_mismatch
from infeng_kit.checks import library
from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

SECTION_OF = {
    "quant_formats": "format",
    "tokenizers": "tokenizer",
    "policies": "policy",
    "logit_processors": "processor",
    "observers": "observer",
    "backends": "backend",
    "model_families": "family",
}
"""The section for a part of each kind that has one of its own; the others are made and left alone."""


def check(plan: Plan, _: str, teller: Teller) -> None:
    """Report whether plugin.yaml is valid, and whether hooks and library bring what it lists, no more and no less.

    Answers with the sections for the parts, as JSON: [[section, name], ...].
    """
    plugins = plan.plugins()
    plugin = next((p for p in plugins.manifests if plan.plugin in (p.name, p.found.name)), None)
    if plugin is None:
        why = f"the wheel has no entry point in the group infeng.plugins with a plugin named {plan.plugin}"
        teller.line(failed("plugin.yaml", why, "compare pyproject.toml with docs/adding-a-plugin.md"))
        return
    mismatch = abi_mismatch(plugin.manifest.abi) if plugin.manifest is not None and plugin.manifest.abi else None
    reason = mismatch or plugin.reason
    if plugin.manifest is None or reason.code != "ready":
        remedy = reason.remedy or "repair plugin.yaml; docs/adding-a-plugin.md lists its keys"
        state = failed if reason.is_fault or mismatch else skipped
        teller.line(state("plugin.yaml", reason.text or reason.code, remedy))
        return
    if plugin.name != plan.plugin:
        why = f"it says that the plugin is called {plugin.name}, the entry point {plan.plugin}"
        teller.line(failed("plugin.yaml", why, "give both the same name, by which settings and reports know it"))
        return
    unknown = [(note, "correct the word, or take an engine that knows it") for note in plugin.manifest.notes]
    faults = unknown or list(_faults(plugins, plugin))  # what is left out would be missing, too
    for fault, remedy in faults:
        teller.line(failed("plugin.yaml", fault, remedy))
    if not faults:
        teller.line(ok("plugin.yaml", f"plugin {plugin.name} {plugin.manifest.version} is valid and tells the truth"))
    if plugin.usable:
        teller.answer(json.dumps(_parts(plan, plugin, teller)))


def _parts(plan: Plan, plugin: Plugin, teller: Teller) -> list[tuple[str, str]]:
    """Return the sections for the parts of the plugin; a library that opens answers for its kernels."""
    assert plugin.manifest is not None
    found: list[tuple[str, str]] = []
    if plugin.manifest.library is not None or plugin.manifest.kernels:
        teller.begin("the kernel library")
        found += library.check(plan, teller)
    for kind in (hook.kind for hook in HOOKS):
        found += [(SECTION_OF.get(kind, "part"), _argument(kind, name)) for name in plugin.names(kind)]
    found += [("command", name) for name in plugin.manifest.commands]
    tried = {hook.kind for hook in HOOKS} | {"hooks", "ops"}  # kernels are tried of ops
    for kind, names in plugin.manifest.provides.items():
        if names and kind not in tried:
            remedy = "write tests of them; infeng-kit has no check for this kind"
            teller.line(skipped(kind.replace("_", " "), f"{', '.join(names)}: not tried", remedy))
    return [*found, ("routes", "")] if "infeng_serve_routes" in plugin.names("hooks") else found


def _argument(kind: str, name: str) -> str:
    return name if kind in SECTION_OF else f"{kind}/{name}"


def _faults(plugins: Plugins, plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Yield what differs between plugin.yaml and the hooks, with what to do."""
    assert plugin.manifest is not None
    for hook in HOOKS:
        for name in plugin.names(hook.kind) if plugin.manifest.python else ():
            try:
                plugins.get(hook, name)
            except PluginError as error:
                if hook.kind != "quant_formats" or plugin.manifest.library is None:
                    yield (
                        plugin.reason.text if plugin.reason.is_fault else error.why,
                        f"let {hook.name}, marked with hookimpl, return {name}, or take it from plugin.yaml",
                    )
    if not plugin.manifest.python:
        return
    try:
        module = importlib.import_module(plugin.manifest.python)
    except ImportError as error:
        yield f"importing {plugin.manifest.python} raised {error}", "repair the import"
        return
    for hook in HOOKS:
        brought = _brought(module, hook.name, plugins, plugin)
        for name in sorted(set(brought) - set(plugin.names(hook.kind))) if hook.gives != "list" else ():
            yield (
                f"{hook.name} returns {name}, which plugin.yaml does not list: the engine does not find it",
                f"add it there: provides: {{{hook.kind}: [{name}]}}",
            )
    known = {hook.name for hook in HOOKS} | set(plugin.names("hooks")) | _CONVERSION
    for name in sorted(name for name in vars(module) if name.startswith("infeng_") and callable(vars(module)[name])):
        if name not in known:
            yield f"{name} implements no hook of the engine", "list a hook of another wheel under provides.hooks"


_CONVERSION = {f"infeng_{kind}" for kind in ("sources", "quantizers", "calibrators", "model_readers", "model_writers")}


def _brought(module: ModuleType, name: str, plugins: Plugins, plugin: Plugin) -> dict[str, object]:
    """Return what a hook returns by name; nothing if it fails, which another check reports."""
    function = getattr(module, name, None)
    if not callable(function):
        return {}
    takes = function.__code__.co_varnames[: function.__code__.co_argcount] if hasattr(function, "__code__") else ()
    try:
        found = function(**({"settings": plugins.settings(plugin)} if "settings" in takes else {}))
    except Exception:
        return {}
    return dict(found) if isinstance(found, dict) else {}
