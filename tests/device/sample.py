"""Run each kernel of a library on a few of its cases and compare the bytes with the reference's.

``sample.py [LIBRARY [CASES]]``: without a library, the kernels for GPUs, under one of NVIDIA's checkers.
"""

import sys

from infeng_cuda.libraries import GPU, path_of
from infeng_kit.cases import cases, reference

from infeng_core.api.kernels import detect, open_library


def main(path: str = str(path_of(GPU)), count: str = "4") -> int:
    """Compare on ``count`` cases of each kernel, spread over all; return 1 if one differs."""
    different = 0
    for kernel in open_library(path, ",".join(sorted(detect().features))).kernels:
        accepted = [case for case in cases(kernel.op) if kernel.accepts(case.problem)]
        for case in accepted[:: max(1, len(accepted) // int(count))]:
            judge = next(one for one in reference().kernels if one.op == kernel.op and one.accepts(case.problem))
            if case.run(kernel) != case.run(judge):
                different = 1
                print(f"{kernel.name}: {case.name} differs", file=sys.stderr)
    return different


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
