"""Run each kernel for GPUs on a few of its cases, under one of NVIDIA's checkers, and compare the bytes."""

import sys

from infeng_cuda.libraries import GPU, path_of
from infeng_kit.cases import cases, reference

from infeng_core import _native as native

CASES = 4  # of a kernel, spread over all


def main() -> int:
    library = native.open_library(str(path_of(GPU)), ",".join(sorted(native.cpu_info().features)))
    different = 0
    for kernel in library.kernels:
        accepted = [case for case in cases(kernel.op) if kernel.accepts(case.problem)]
        for case in accepted[:: max(1, len(accepted) // CASES)]:
            judge = next(one for one in reference().kernels if one.op == kernel.op and one.accepts(case.problem))
            if case.run(kernel) != case.run(judge):
                different += 1
                print(f"{kernel.name}: {case.name} differs")
    return different


if __name__ == "__main__":
    sys.exit(main())
