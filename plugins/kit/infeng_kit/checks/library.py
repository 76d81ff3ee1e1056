"""A kernel library: it opens in a child process, and its table agrees with plugin.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from infeng_core.api.formats import BUILTIN
from infeng_core.api.inspection import OPS, LibraryState, library_states
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan


def check(plan: Plan, teller: Teller) -> list[tuple[str, str]]:
    """Report whether each library opens, and how its table differs from plugin.yaml; return the kernels' sections."""
    kernels: list[tuple[str, str]] = []
    formats: list[str] = []
    serves_models = False  # as they are: an op of its own is of families that name it
    for state in own_states(plan):
        part = f"library {state.name}"
        if state.native is None:
            remedy = state.reason.remedy or "repair the library; docs/abi.md has the rules"
            teller.line(failed(part, f"{state.reason.code}: {state.reason.text}", remedy))
            continue
        kernels += [("kernel", f"{state.name}/{kernel.name}") for kernel in state.native.kernels]
        formats += [format for format in state.native.formats if format not in BUILTIN]
        faults = [*((fault, _REPAIR) for fault in state.native.faults), *_differences(state)]
        for fault, remedy in faults:
            teller.line(failed(part, fault, remedy))
        if not faults:
            count = len(state.native.kernels)
            listed = f"plugin.yaml lists its {count} kernel{'s' if count > 1 else ''}"
            listed += f" and its ops {', '.join(state.native.ops)}" if state.native.ops else ""
            teller.line(ok(part, f"opens, speaks ABI {'.'.join(map(str, state.native.abi))}, and {listed}"))
        serves_models = serves_models or any(kernel.op in OPS for kernel in state.native.kernels)
    return [*kernels, ("engine", formats[0] if formats else "")] if serves_models else kernels


def own_states(plan: Plan) -> list[LibraryState]:
    """Return the plugin's libraries, opened where they can be."""
    return [state for state in library_states(plan.plugins()) if state.plugin.name == plan.plugin]


def _differences(state: LibraryState) -> Iterator[tuple[str, str]]:
    """Yield how the library's table and plugin.yaml differ, with what to do."""
    assert state.native is not None
    notes = state.plugin.kernels
    for kernel in state.native.kernels:
        covering = [note for note in notes if note.covers(kernel.name)]
        if not covering:
            yield (
                f"the library has the kernel {kernel.name}, which plugin.yaml does not list",
                f"add {{name: {kernel.name}, op: {kernel.op}}} to provides.kernels",
            )
        elif all(note.op != kernel.op for note in covering):
            yield f"plugin.yaml says that {kernel.name} is of {covering[0].op}, the library: {kernel.op}", _ALIGN
    for note in notes:
        if not any(note.covers(kernel.name) for kernel in state.native.kernels):
            yield f"plugin.yaml lists the kernel {note.name}, which the library does not have", _ALIGN
    promised = state.plugin.provides.get("ops", ())
    for op in sorted({*state.native.ops} ^ {*promised}):
        if op in promised:
            yield f"plugin.yaml lists the op {op}, which the library does not describe", _ALIGN
        else:
            yield f"the library describes the op {op}, which plugin.yaml does not list", f"add {op} to provides.ops"
    if state.native.version != state.plugin.version:
        yield f"plugin.yaml says version {state.plugin.version}, the library {state.native.version}", _ALIGN


_REPAIR = "repair the library's description; docs/adding-an-op.md has its rules"
_ALIGN = "make plugin.yaml and the library's description say the same"
