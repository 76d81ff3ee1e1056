"""Names for the tests of plugins."""

from __future__ import annotations

from infeng_core.api import Plugins, load_config
from infeng_core.api.formats import format_lookup
from infeng_core.api.inspection import library_states
from infeng_kit.conformance import different, suite

__all__ = ["differences"]


def differences(library: str) -> dict[str, list[str]]:
    """Return for each kernel of an installed library the cases on which it differs from the reference.

    The kernels run in this process. Raises AssertionError for a library that is not there or cannot be opened, and for
    a kernel that accepts none of the cases of its op.
    """
    plugins = Plugins.discover(load_config(overrides={"kernels.order": [library, "reference"]}))
    state = next((state for state in library_states(plugins) if state.name == library), None)
    assert state is not None, f"no kernel library {library} is installed"
    assert state.native is not None, f"library {library}: {state.reason}"
    found = {}
    for kernel in state.native.kernels:
        chosen = suite(kernel, [(name, format_lookup(plugins)(name).activation) for name in state.native.formats])
        assert chosen, f"{kernel.name} accepts none of the cases of {kernel.op}"
        found[kernel.name] = list(different(kernel, chosen, lambda name: None))
    return found
