"""Names for the tests of plugins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import Plugins, load_config
from infeng_core.api.formats import format_lookup
from infeng_core.api.inspection import LibraryState, library_states
from infeng_core.api.kernels import Pool, Program, plain_kernel, row_ops
from infeng_kit.conformance import different, suite

__all__ = ["differences", "row_op"]


def differences(library: str) -> dict[str, list[str]]:
    """Return for each kernel of an installed library the cases on which it differs from the reference.

    A kernel of an op that a library describes is compared with the op's plain kernel. The kernels run in this process.
    Raises AssertionError for a library that is not there or cannot be opened, and for a kernel that accepts none of the
    cases of its op.
    """
    plugins, state = _opened(library)
    assert state.native is not None
    found = {}
    for kernel in state.native.kernels:
        plain = plain_kernel(kernel.op, library_states(plugins), plugins.cpu)
        chosen = suite(kernel, [(name, format_lookup(plugins)(name).activation) for name in state.native.formats])
        assert chosen, f"{kernel.name} accepts none of the cases of {kernel.op}"
        found[kernel.name] = list(different(kernel, chosen, lambda name: None, plain[1] if plain else None))
    return found


def row_op(library: str, op: str, **operands: Any) -> NDArray[np.float32]:
    """Return what the plain kernel of an op computes that an installed library describes, (rows, columns) float32.

    operands: by name, (rows, columns) for rows, (columns,) for a vector, a number; all of float32. One that is left out
    has the op's own value.
    """
    plugins, _ = _opened(library)
    found = plain_kernel(op, library_states(plugins), plugins.cpu)
    assert found is not None, f"{library} has no exact kernel for an op {op}"
    described = [one for one in row_ops()[op] if one.kind != "row_index"]
    rows, columns = np.shape(operands[described[0].name])
    program = Program(Pool(1, spin_us=0), max_rows=rows, max_samples=0, max_segments=1, context=rows)
    buffers = {one.name: program.buffer(columns) for one in described if one.kind == "rows"}
    given = {one.name: operands.get(one.name, one.value) for one in described}
    out = program.buffer(columns)
    program.row_op(op, [(rows, found[1])], columns, out, operands={**given, **buffers})
    program.finish()
    for name, buffer in buffers.items():
        program.view(buffer)[:] = given[name]
    positions, none = np.arange(rows, dtype=np.int32), np.zeros(0, np.int32)
    program.run(np.zeros_like(positions), positions, np.zeros((0, 4), np.int32), none, none)
    return np.array(program.view(out))


def _opened(library: str) -> tuple[Plugins, LibraryState]:
    plugins = Plugins.discover(load_config(overrides={"kernels.order": [library, "reference"]}))
    state = next((state for state in library_states(plugins) if state.name == library), None)
    assert state is not None, f"no kernel library {library} is installed"
    assert state.native is not None, f"library {library}: {state.reason}"
    return plugins, state
