"""Kernel libraries: which may be mapped, which can be, and the opened ones.

A library is mapped into this process only after three checks: the manifest allows it, the processor has the features
that it needs, and a child process has loaded it and survived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from infeng_core import _native
from infeng_core.errors import KernelError, PluginError, unknown_key_remedy
from infeng_core.kernels.checks import FAULTS, LibraryCheck
from infeng_core.log import get_logger, warn_once
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.hookspecs import KERNEL_CHECKS, KernelLibrary
from infeng_core.plug.manager import Plugins
from infeng_core.plug.plugin import PluginManifest
from infeng_core.plug.reason import READY, Reason, abi_mismatch, unmet
from infeng_core.plug.wheels import KERNELS, kernels_remedy
from infeng_core.settings.config import SCHEMA, EngineConfig, default_of

log = get_logger(__name__)

REFERENCE = "reference"
UNTRIED = Reason("untried", "nothing that is installed tries kernel libraries", "install the wheel infeng-inspect")


@dataclass
class LibraryState:
    """A library that a plugin offers, and the state that it reached."""

    offer: KernelLibrary
    plugin: PluginManifest
    reason: Reason
    sha256: str = ""
    native: _native.Library | None = None
    check: LibraryCheck | None = None
    """None before the library was tried, and for the reference, which judges the others."""

    @property
    def name(self) -> str:
        """The name that kernels.order uses."""
        return self.offer.name

    @property
    def path(self) -> Path:
        """The shared object."""
        return self.offer.path

    def features_of(self, kernel: str, own: Iterable[str] = ()) -> frozenset[str]:
        """Return all features that ``kernel`` needs: the library's, those that plugin.yaml lists for it, and its
        ``own``."""
        noted = (feature for note in self.plugin.kernels if note.covers(kernel) for feature in note.features)
        return frozenset((*self.plugin.features, *self.offer.features, *noted, *own))


_opened: WeakKeyDictionary[Plugins, list[LibraryState]] = WeakKeyDictionary()
_tried: WeakKeyDictionary[Plugins, dict[Path, LibraryState]] = WeakKeyDictionary()
"""Libraries that were already verified and opened, alone or with the others: no library is opened twice."""


def library_states(plugins: Plugins) -> list[LibraryState]:
    """Return every kernel library in the order of ``kernels.order``; the first call verifies and opens the usable ones.

    Raises PluginError for two libraries of one name, for a broken reference library and, under ``kernels.strict``, for
    any other broken one; KernelError for a name in ``kernels.order`` that none has.
    """
    if plugins not in _opened:
        found = _open_those(plugins)
        _require_order(plugins, {state.name: state for state in found})
        _opened[plugins] = found
        for state in _opened[plugins]:
            fields = {"library": state.name, "path": str(state.path), "sha256": state.sha256[:16]}
            log.debug("kernel library", state=state.reason.code, reason=str(state.reason), **fields)
            if (state.reason.is_fault or state.reason is UNTRIED) and plugins.plugin(state.plugin.name).usable:
                plugins.warn(state.plugin.name, state.reason, state.path)
        _look_for_typos(plugins.config, {state.name: state for state in _opened[plugins]})
    return _opened[plugins]


def libraries(plugins: Plugins) -> list[_native.Library]:
    """Return the opened libraries in the manifest's order, the reference among them only if the order names it."""
    return [s.native for s in library_states(plugins) if s.native is not None and s.reason.code == "ready"]


def state_of(plugins: Plugins, plugin: Plugin, path: Path) -> LibraryState:
    """Return the state of one plugin's library; opens this library alone if the others are not open yet."""
    states = _opened.get(plugins) or _open_those(plugins, (plugins.plugin("core"), plugin))
    return next(state for state in states if state.path == path)


def _open_those(plugins: Plugins, of: Iterable[Plugin] | None = None) -> list[LibraryState]:
    config, cpu = plugins.config, plugins.cpu
    states: dict[str, LibraryState] = {}
    tried = _tried.setdefault(plugins, {})
    for offer, plugin, reason in plugins.kernel_libraries(of):
        state = tried.get(offer.path)
        if state is None or state.plugin is not plugin:
            state = LibraryState(offer, plugin, _allowed(offer, plugin, config, cpu) if reason == READY else reason)
        other = states.setdefault(offer.name, state)
        if other is not state:
            why = f"offered by two plugins: {other.plugin.name} ({other.path}) and {plugin.name} ({state.path})"
            raise PluginError(f"kernel library {offer.name}", why, "list one of the plugins in plugins.disable")
    reference = states[REFERENCE]
    for state in sorted(states.values(), key=lambda state: (state is not reference, state.name)):
        if tried.get(state.path) is state:
            continue
        tried[state.path] = state
        # The reference is opened whatever the manifest allows: it judges the others.
        if state is reference:
            _open(state, cpu)
            if state.native is None:
                raise PluginError(f"kernel library {REFERENCE}", str(state.reason), "reinstall infeng-core")
        elif state.reason is READY and _verified(state, reference, plugins):
            _open(state, cpu)
    return sorted(states.values(), key=lambda state: (rank(state.name, config), state.name))


def rank(name: str, config: EngineConfig) -> int:
    """Return the place of a library in ``kernels.order``; a library that is not allowed comes last."""
    order = config.kernels.order
    if name in order:
        return order.index(name)
    return order.index("*") if "*" in order else len(order)


def plain_kernel(op: str, states: Iterable[LibraryState], cpu: Cpu) -> tuple[LibraryState, _native.Kernel] | None:
    """Return the plain kernel of an op that libraries describe, which judges its other kernels; None for other ops.

    It is the one of the lowest priority, of the exact kernels that ``cpu`` can run.
    """
    if op in _native.OPS:
        return None
    found = [
        (state, kernel)
        for state in states
        for kernel in (state.native.kernels if state.native is not None else ())
        if kernel.op == op
        and kernel.numerics == "exact"
        and unmet(cpu, None, sorted(state.features_of(kernel.name, kernel.features))) is None
    ]
    return min(found, key=lambda one: (one[1].priority, one[0].name, one[1].name), default=None)


def forced(config: EngineConfig) -> dict[str, set[str]]:
    """Return the libraries that ``kernels.force`` names, each with its ops."""
    result: dict[str, set[str]] = {}
    for op, target in config.kernels.force.items():
        result.setdefault(target.partition("/")[0], set()).add(op)
    return result


def missing_wheels(plugins: Plugins) -> list[str]:
    """Return the project's wheels with kernels for this processor that the settings would use and that are missing."""
    config, here = plugins.config, {plugin.name for plugin in plugins.manifests}
    unwanted = {*config.kernels.disable, *config.plugins.disable}
    fit = [
        name
        for name, features in KERNELS.items()
        if plugins.cpu.features.issuperset(features)
        and rank(name, config) < len(config.kernels.order)
        and name not in unwanted
    ]
    best = [name for name in fit if name != "amx"][:1]  # one library that has all ops is enough; amx has a few
    return [f"infeng-{name}" for name in fit if name not in here and name in ("amx", *best)]


def _require_order(plugins: Plugins, states: Mapping[str, LibraryState]) -> None:
    """Raise KernelError for a name in ``kernels.order`` that no library has.

    Names of the default order are right even where their plugins are not installed, and so are those of plugins that
    cannot be used.
    """
    known = {*default_of(SCHEMA["kernels"]["order"]), *states}
    unusable = {plugin.name for plugin in plugins.manifests if not plugin.usable}
    for name in plugins.config.kernels.order:
        if name not in known | unusable:
            what = f"kernels.order: {name} ({plugins.config.provenance.get('kernels.order', 'argument')})"
            raise KernelError(what, "no kernel library of this name is installed", kernels_remedy(name, known))


def _look_for_typos(config: EngineConfig, states: Mapping[str, LibraryState]) -> None:
    """Warn of a name in ``kernels.disable`` that no library has; under ``kernels.strict`` an error."""
    known = {*default_of(SCHEMA["kernels"]["order"]), *states}
    for name in config.kernels.disable:
        library, _, kernel = name.partition("/")
        native = states[library].native if library in states else None
        kernels = [one.name for one in native.kernels] if native is not None else []
        if library not in known:
            why, remedy = "no kernel library of this name is installed", kernels_remedy(library, known)
        elif kernel and kernels and kernel not in kernels:
            why, remedy = f"{library} has no such kernel", unknown_key_remedy(kernel, kernels)
        else:
            continue
        what = f"kernels.disable: {name} ({config.provenance.get('kernels.disable', 'argument')})"
        if config.kernels.strict:
            raise KernelError(what, why, remedy)
        warn_once(log, f"{what} is ignored", reason=why, remedy=remedy)


def _allowed(offer: KernelLibrary, plugin: PluginManifest, config: EngineConfig, cpu: Cpu) -> Reason:
    """Return READY, or why the library must not be mapped, without reading the file."""
    if offer.name in config.kernels.disable:
        return Reason("disabled", f"listed in kernels.disable ({config.provenance.get('kernels.disable', 'argument')})")
    if rank(offer.name, config) == len(config.kernels.order) and offer.name not in forced(config):
        return Reason("not_in_order", remedy=f"add {offer.name} or * to kernels.order")
    needs = (*plugin.features, *offer.features)
    lacking = abi_mismatch(plugin.abi) or unmet(cpu, plugin.arch, needs)
    if lacking:
        return lacking
    notes = [unmet(cpu, None, note.features) for note in plugin.kernels]
    if notes and all(notes) and notes[0]:
        return Reason("missing_features", f"none of its kernels can run: the first {notes[0].text}")
    if not offer.path.is_file():
        return Reason("missing_file", f"{offer.path} is not there", "reinstall the plugin")
    return READY


def _verified(state: LibraryState, reference: LibraryState, plugins: Plugins) -> bool:
    """Load the library in another process unless the outcome is known; sets ``state.reason``."""
    check = next((part for _, part in plugins.each(KERNEL_CHECKS)), None)
    try:
        state.sha256 = sha256(state.path)
    except OSError as error:
        state.reason = Reason("missing_file", f"{state.path}: {error.strerror}", "reinstall the plugin")
        return False
    if check is None:
        state.reason = UNTRIED
        return False
    state.check = check.of_library(state.path, state.sha256, reference.path, reference.sha256, plugins.cpu)
    name = state.check.opened()
    if isinstance(name, Reason):
        state.reason = name
    elif name != state.name:
        state.reason = Reason("invalid", f"the library calls itself {name}, the plugin says {state.name}")
    return state.reason is READY


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file; raises OSError."""
    status = path.stat()
    return _sha256(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=256)
def _sha256(path: Path, *_identity: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(state: LibraryState, cpu: Cpu) -> None:
    try:
        state.sha256 = state.sha256 or sha256(state.path)
        state.native = _native.open_library(str(state.path), ",".join(sorted(cpu.features)))
    except _native.NativeError as error:
        state.reason = Reason(FAULTS.get(error.code, "refused"), str(error))
    except OSError as error:
        state.reason = Reason("missing_file", f"{state.path}: {error.strerror}")
