"""The process that tries a library before the engine does: ``python -m infeng_inspect.probe FD``.

It reads one JSON request per line from its standard input and answers on file descriptor FD. Whatever a library does
while it is loaded, asked or run (an illegal instruction, abort, an endless loop) ends this process and not the
engine's.

    {"open": PATH, "features": "avx2,fma", "cpu_s": 3}          -> {"ok": true, "name": ..., "version": ..., "abi": []}
    {"fits": KERNEL, "problem": {...}, ...}                      -> {"ok": true, "fits": true, "case": {...} or null}
    {"check": KERNEL, "problem": {...}, "reference": PATH, ...}  -> {"ok": true, "difference": null or text}
    {"check": KERNEL, ..., "judge": [PATH, KERNEL], ...}         -> the same, for an op that a library describes

A failure of the library is answered with {"ok": false, "code": ..., "text": ...}. An exception of the engine's own
code, which says nothing of the library, has the code ``HOST`` and a "traceback".
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import sys
from typing import Any

from infeng_core.api.kernels import native, problems

IDLE_S = 10.0

HOST = "host"
"""The code of an answer that failed by the engine's own code."""


def main() -> None:
    """Serve requests until standard input ends or no request arrives for a while."""
    answers = os.fdopen(int(sys.argv[1]), "w")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests = sys.stdin.fileno()  # read without a buffer, so that select sees pending bytes
    pending = b""
    while select.select([requests], [], [], IDLE_S)[0]:
        chunk = os.read(requests, 1 << 16)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            answers.write(reply(line) + "\n")
            answers.flush()


def reply(line: bytes) -> str:
    """Return the answer to the request in ``line`` as JSON, whatever the engine's own code raises."""
    try:
        return json.dumps(answer(json.loads(line)))
    except Exception as error:
        import traceback  # rarely needed, and a child must start fast

        text = f"{type(error).__name__}: {error}"
        return json.dumps({"ok": False, "code": HOST, "text": text, "traceback": traceback.format_exc()})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer ``request`` within its limit of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + float(request["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        library = native.open_library(request["open"], request["features"])
        kernels = {kernel.name: kernel for kernel in library.kernels}
        if "fits" in request:
            return {"ok": True, **_fits(kernels[request["fits"]], request["problem"])}
        if "check" in request:
            reference = native.open_library(request["reference"], request["features"])
            judge = None
            if request["judge"] is not None:
                path, name = request["judge"]
                known = native.open_library(path, request["features"]).kernels
                judge = next((kernel for kernel in known if kernel.name == name), None)
            found = _difference(kernels[request["check"]], reference, request["problem"], judge)
            return {"ok": True, "difference": found}
        for format in library.formats:
            _pack_and_unpack(format)
        return {"ok": True, "name": library.name, "version": library.version, "abi": list(library.abi)}
    except native.NativeError as error:
        return {"ok": False, "code": error.code, "text": str(error)}


def _pack_and_unpack(format: str) -> None:
    """Call the functions of a weight format on a small matrix; one that cannot be packed is unpacked from zeros."""
    import numpy as np

    from infeng_core.api.formats import packer

    n, k = 20, 100  # fill neither panels nor groups
    panels = native.Arena(2 * native.panel_bytes(format, k), huge_pages=False)
    try:
        packer().pack(format, np.random.default_rng(n).standard_normal((n, k), np.float32), panels)
    except native.NativeError as error:
        if error.code != "unimplemented":
            raise
    native.unpack(format, panels, 0, 2, k)


def _fits(kernel: native.Kernel, fields: dict[str, Any]) -> dict[str, Any]:
    """Call each entry point that the engine may call before it takes memory."""
    from infeng_inspect.small import small

    problem = problems.problem(fields)
    if not kernel.accepts(problem):
        return {"fits": False}
    kernel.workspace(problem)
    return {"fits": True, "case": small(problem, kernel)}


def _difference(
    kernel: native.Kernel, reference: native.Library, fields: dict[str, Any], judge: native.Kernel | None
) -> str | None:
    from infeng_inspect import comparison
    from infeng_inspect.judges import NoJudgeError

    try:
        return comparison.difference(kernel, reference, fields, judge)
    except NoJudgeError:
        return None


if __name__ == "__main__":
    main()
