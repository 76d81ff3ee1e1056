"""A peer for tests: the protocol in a process of its own, with any fault that is asked for.

``python fake_peer.py FAULT RATE``; FAULT is none, or what goes wrong and when, such as ``crash-load`` or ``hang-work``.
"""

import json
import os
import signal
import sys
import time


def fail(fault: str, when: str) -> None:
    """Do what FAULT says if this is its time."""
    kind, _, at = fault.partition("-")
    if at != when:
        return
    print(f"error: about to {kind}", file=sys.stderr, flush=True)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        sys.exit(3)
    if kind == "hang":
        time.sleep(600)
    if kind == "garbage":
        print("Loading weights: 12%", flush=True)
    if kind == "error":
        print(json.dumps({"error": "no such tensor"}), flush=True)
    if kind == "zero":
        print(json.dumps({"tokens_per_s": 0}), flush=True)
    if kind == "stray":
        print(json.dumps([1, 2]), flush=True)


def main() -> None:
    fault, rate = sys.argv[1], float(sys.argv[2])
    fail(fault, "load")
    details = {"kv_bytes_per_position": 10, "pid": os.getpid()}
    told = {"engine": "fake", "version": "7", "kernels": ["fast"], "bytes_per_token": 1000, "details": details}
    print(json.dumps({"ready": True, **told}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        fail(fault, "work")
        figures = {"tokens_per_s": rate + request["seed"], "seconds": 1.0, "prefill_seconds": 0.5, "tokens": 32}
        print(json.dumps(figures), flush=True)
    if fault == "deaf-end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


if __name__ == "__main__":
    main()
