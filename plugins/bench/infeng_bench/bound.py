"""Which processor features the kernels of an engine may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infeng_core.api import Engine


def kernel_features(engine: Engine) -> dict[str, list[str]]:
    """Return the processor features that each bound kernel, "library/kernel", may use.

    Kernels of a backend that brings its own, outside any library, are left out.
    """
    states = {state.name: state for state in (engine.selector.states if engine.selector else ())}
    found = {}
    for op in engine.bound():
        state = states.get(op.library)
        if state is not None and state.native is not None:
            own = next((kernel.features for kernel in state.native.kernels if kernel.name == op.kernel), [])
            found[f"{op.library}/{op.kernel}"] = sorted(state.features_of(op.kernel, own))
    return found
