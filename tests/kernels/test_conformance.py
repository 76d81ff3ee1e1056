"""Every exact kernel of every installed library equals the reference byte for byte.

The tests are made from the libraries' own kernel tables, so a kernel that is added to one is tested without being named
here. A library that this CPU cannot run is skipped with the feature that is missing.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from infeng_kit.cases import Case, cases
from kernels.harness import find_kernel, reference

from infeng_core import _native as native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins

REFERENCE = reference()
PLUGINS = Plugins.discover()
FEATURES = set(native.cpu_info().features)


def kernels() -> Iterator[native.Kernel]:
    for library in libraries(PLUGINS):
        if library.name != REFERENCE.name:
            yield from (kernel for kernel in library.kernels if kernel.numerics == "exact")


@cache
def expected(name: str, op: str) -> tuple[bytes, ...]:
    case = next(case for case in cases(op) if case.name == name)
    return case.run(find_kernel(REFERENCE, case.problem))


@cache
def cases_of(op: str) -> list[Case]:
    return list(cases(op))


@pytest.mark.parametrize("kernel", list(kernels()), ids=lambda kernel: f"{kernel.library}/{kernel.name}")
def test_kernel_equals_the_reference_byte_for_byte(kernel: native.Kernel) -> None:
    missing = set(kernel.features) - FEATURES
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    ran, different = 0, []
    for case in cases_of(kernel.op):
        if not kernel.accepts(case.problem):
            continue
        ran += 1
        if case.run(kernel) != expected(case.name, kernel.op):
            different.append(case.name)
    assert ran > 0, "the kernel accepts none of its op's cases"
    assert not different
