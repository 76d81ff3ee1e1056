"""Every kernel of infeng-cuda equals the reference byte for byte, on the emulated GPU and on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice

import pytest
from infeng_cuda.backend import opened
from infeng_cuda.libraries import EMULATED
from infeng_inspect.api import OneOp
from infeng_kit.cases import Case, cases
from kernels.harness import find_kernel, reference

from infeng_core import _native as native

REFERENCE = reference()
NAMES = [kernel.name for kernel in opened(EMULATED).kernels]
FEW = 5  # cases of a kernel in the fast suite, spread over all


@cache
def cases_of(op: str) -> list[Case]:
    return list(cases(op))


def accepted(kernel: native.Kernel) -> list[Case]:
    return [case for case in cases_of(kernel.op) if kernel.accepts(case.problem)]


def different(kernel: native.Kernel, chosen: Iterator[Case] | list[Case]) -> list[str]:
    """Return the names of the cases in which a kernel and the reference write different bytes."""
    return [case.name for case in chosen if case.run(kernel) != case.run(find_kernel(REFERENCE, case.problem))]


def kernel_of(library: native.Library, name: str) -> native.Kernel:
    return next(kernel for kernel in library.kernels if kernel.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_the_reference_on_some_cases(name: str, emulated: native.Library) -> None:
    kernel = kernel_of(emulated, name)
    found = accepted(kernel)
    assert found, "the kernel accepts none of its op's cases"
    assert different(kernel, islice(found, 0, None, max(1, len(found) // FEW))) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_the_reference_on_all_cases(name: str, emulated: native.Library) -> None:
    kernel = kernel_of(emulated, name)
    assert different(kernel, accepted(kernel)) == []


@pytest.mark.device
@pytest.mark.parametrize("name", NAMES)
def test_kernel_of_a_gpu_equals_the_reference_on_all_cases(name: str, gpu: native.Library) -> None:
    kernel = kernel_of(gpu, name)
    assert different(kernel, accepted(kernel)) == []


def test_both_libraries_have_the_same_kernels(emulated: native.Library, gpu: native.Library) -> None:
    assert [kernel.name for kernel in gpu.kernels] == NAMES


def test_kernels_have_the_names_of_the_reference(emulated: native.Library) -> None:
    known = {(kernel.op, kernel.name) for kernel in REFERENCE.kernels if "foreign" not in kernel.name}
    assert known - {(kernel.op, kernel.name) for kernel in emulated.kernels} == set()


def test_each_layer_of_a_cache_of_a_device_is_compared(emulated: native.Library) -> None:
    case = next(case for case in cases_of("kv_append") if case.fields["kv"] == "int8")
    runs = []
    for kernel in (kernel_of(emulated, "kv_append_int8"), find_kernel(REFERENCE, case.problem)):
        one = OneOp(case.fields, kernel, REFERENCE, [case.step], calls=2, copies=2, pool=native.Pool(1))
        runs.append([(name, array.tobytes()) for name, array in one.run(0)])
        assert not one.damage
    assert len(runs[0]) == 2, "an array for each layer"
    assert runs[0] == runs[1]
    assert any(runs[0][1][1]), "the second layer was written"
