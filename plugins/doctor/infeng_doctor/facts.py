"""The state of the plugin system as plain data, for `--json` and for the text that the command line prints."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infeng_inspect.api import machine, verdicts_folder, writable

from infeng_core.api import BACKENDS, InfengError, Plugins, __version__, printable
from infeng_core.api.engines import NUMERICS
from infeng_core.api.inspection import (
    ABI_VERSION,
    Decision,
    LibraryState,
    Plugin,
    Reason,
    abi_mismatch,
    barrier_times,
    fingerprint,
    identity,
    library_states,
    missing_wheels,
    note,
    pages_of,
    problem_fields,
    sha256,
    shortened,
)
from infeng_core.api.kernels import NEEDS, Pool, Selector
from infeng_doctor.hook_names import unknown_hooks
from infeng_doctor.lock_text import lock_text


def doctor(plugins: Plugins, model_bytes: int | None = None) -> dict[str, Any]:
    """Return machine, plugins, libraries, settings and cache. The call tries and opens the libraries.

    model_bytes: size of the weights for which workers are placed, if a model was named.
    """
    folder = verdicts_folder()
    states = library_states(plugins)
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return {
        "version": __version__,
        "abi": ".".join(map(str, ABI_VERSION)),
        "numerics": NUMERICS,
        "python": platform.python_version(),
        "machine": machine(plugins.cpu),
        "workers": workers(plugins, model_bytes),
        "plugins": [plugin_summary(plugin) for plugin in plugins.manifests],
        "libraries": [library(state) for state in states],
        "backends": backends(plugins, states),
        "missing_wheels": missing_wheels(plugins),
        "settings": settings(plugins),
        "cache": {
            "path": str(folder),
            "bytes": sum(path.stat().st_size for path in files),
            "writable": writable(folder),
        },
    }


def workers(plugins: Plugins, model_bytes: int | None = None) -> dict[str, Any]:
    """Return {"count", "pinned", "cpus", "nodes", "why", "memory", "barrier_us": {"median", "p99"}} of an engine.

    cpus: in the order of the workers. why: a sentence for each choice. memory: {"policy", "nodes", "lock"}.
    barrier_us: the time to hand an empty phase to all awake workers and to wait for the last.
    """
    config = plugins.config.threads
    where = plugins.cpu.place(config, model_bytes)
    pages = pages_of(plugins.config.memory, plugins.cpu.topology, where)
    pool = Pool(where.workers, pin=where.pinned, cpus=where.mask)
    times = sorted(barrier_times(pool, 2000).tolist())  # nanoseconds
    barrier = {"median": times[len(times) // 2] / 1e3, "p99": times[len(times) * 99 // 100] / 1e3}
    return {
        "count": pool.threads,
        "pinned": where.pinned,
        "cpus": list(where.cpus),
        "nodes": list(where.nodes),
        "why": list(where.why),
        "memory": {"policy": pages.policy, "nodes": pages.nodes, "lock": pages.lock},
        "barrier_us": barrier,
    }


def backends(plugins: Plugins, states: Sequence[LibraryState]) -> list[dict[str, Any]]:
    """Return {"name", "plugin", "device", "why", "wanted"} of every backend, in the order in which engines try them.

    device: where it computes, "" if it cannot; why: what it lacks; wanted: whether the settings name it.
    """
    from infeng_core.api.engines import device_of

    devices = {state.name: _device(state) for state in states}
    wanted = list(plugins.config.backend.order or (plugins.config.backend.use,))
    result = []
    for name in dict.fromkeys([*wanted, *plugins.names("backends")]):
        plugin, device, why = "", "", ""
        try:
            plugin = plugins.provider(BACKENDS, name).name
            library = device_of(plugins.get(BACKENDS, name), plugins.config)
            found = None if library is None else devices.get(library)
            device = "host" if library is None else (found or {}).get("name", "")
            why = "" if device else (found or {}).get("why", "") or f"its library {library} is not there"
        except InfengError as error:
            why = str(error)
        result.append({"name": name, "plugin": plugin, "device": device, "why": why, "wanted": name in wanted})
    return result


def settings(plugins: Plugins) -> dict[str, dict[str, Any]]:
    """Return every setting with its value and its origin."""
    config = plugins.config
    return {
        name: {"value": _plain(value), "from": config.provenance.get(name, "argument")}
        for name, value in config.values().items()
    }


def plugin_summary(plugin: Plugin) -> dict[str, Any]:
    """Return a plugin's line of `plugins list`, read from its YAML alone."""
    manifest = plugin.manifest
    provides = {kind: list(names) for kind, names in manifest.provides.items() if names} if manifest else {}
    if manifest and manifest.kernels:
        provides["kernels"] = [kernel.name for kernel in manifest.kernels]
    if manifest and manifest.commands:
        provides["commands"] = list(manifest.commands)
    return {
        "name": plugin.name,
        "version": manifest.version if manifest else None,
        "origin": plugin.origin,
        "file": str(plugin.source),
        **_reason((abi_mismatch(manifest.abi) if manifest and plugin.usable else None) or plugin.reason),
        "provides": provides,
        "notes": [*manifest.notes, *unknown_hooks(manifest)] if manifest else [],
    }


def plugin_details(plugin: Plugin) -> dict[str, Any]:
    """Return the content of `plugins info NAME`, read from its YAML, and the sha256 of plugin and library."""
    manifest = plugin.manifest
    result = plugin_summary(plugin)
    if manifest is None:
        return result
    result["description"] = manifest.description
    result["requires"] = {"arch": manifest.arch, "features": list(manifest.features)}
    result["python"] = manifest.python
    if manifest.library is not None:
        result["library"] = {
            "path": str(manifest.library),
            "abi": ".".join(map(str, manifest.abi or ())),
            "sha256": sha256(manifest.library) if manifest.library.is_file() else None,
        }
    try:
        result["sha256"] = fingerprint(plugin)
    except InfengError as error:
        result["sha256"] = None
        result["notes"].append(str(error))
    result["kernels"] = [{"name": k.name, "op": k.op, "features": list(k.features)} for k in manifest.kernels]
    result["commands"] = dict(manifest.commands)
    return result


def library(state: LibraryState) -> dict[str, Any]:
    """Return a kernel library's state."""
    return {
        "name": state.name,
        "plugin": state.plugin.name,
        "path": str(state.path),
        "sha256": state.sha256 or None,
        "mapped": state.native is not None,
        "kernels": len(state.native.kernels) if state.native is not None else len(state.plugin.kernels),
        "device": _device(state),
        **_reason(state.reason),
        "notes": list(_notes(state)),
    }


def _device(state: LibraryState) -> dict[str, Any] | None:
    """Return the device on which a library's kernels compute: its name and bytes, or why there is none."""
    device = state.native.device if state.native is not None else None
    if device is None:
        return None
    if not device.name:
        return {"name": None, "why": printable(device.why, 300)}
    free, total = device.memory()
    return {"name": printable(device.name, 100), "free": free, "total": total}


def _notes(state: LibraryState) -> Sequence[str]:
    """Return what a library describes wrongly, and what its table names and this engine does not know."""
    if state.native is None:
        return ()
    features = [f"feature {name} of kernel {k.name}" for k in state.native.kernels for name in k.features]
    strange = [text for text in features if text.split(" ")[1] not in NEEDS]
    faults = [f"{printable(fault, 300)}: it is left out" for fault in state.native.faults]
    return shortened([*faults, *(note(text) for text in (*state.native.unknown, *strange))])


def decision(item: Decision) -> dict[str, Any]:
    """Return the decision on a problem: every candidate with its reason, best first."""
    chosen = item.chosen
    return {
        "problem": problem_fields(item.problem),
        "chosen": f"{chosen.library}/{chosen.kernel}" if chosen else None,
        "candidates": [{"library": c.library, "kernel": c.kernel, **_reason(c.reason)} for c in item.candidates],
    }


def lock(selector: Selector | None, plugins: Plugins) -> str:
    """Return the text of a manifest.lock for everything that ``selector`` has chosen, and all usable plugins."""
    bound = [
        {**problem_fields(item.problem), "library": item.chosen.library, "kernel": item.chosen.kernel}
        for item in (selector.decisions if selector is not None else ())
        if item.chosen is not None
    ]
    libraries = {state.name: state.sha256 for state in (selector.states if selector is not None else ())}
    return lock_text(bound, libraries, {one.name: identity(one) for one in plugins.manifests if one.usable})


def by_outcome(decisions: Iterable[Decision]) -> list[tuple[list[Decision], Decision]]:
    """Group decisions in which every candidate has the same outcome; returns (group, its first)."""
    groups: dict[str, list[Decision]] = {}
    for item in decisions:
        groups.setdefault(repr(item.candidates), []).append(item)
    return [(group, group[0]) for group in groups.values()]


def _reason(reason: Reason) -> dict[str, str]:
    return {"state": reason.code, "reason": str(reason)}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
