"""Bodies that are the first of their kind and come together."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
import msgspec
from infeng_serve.protocol.reading import convert, decode

sys.setswitchinterval(1e-6)  # threads take turns in the middle of whatever they do
for number in range(20):
    inner = msgspec.defstruct(f"Inner{number}", [(f"a{i}", "int | None", None) for i in range(8)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"f{i}", inner | None, None) for i in range(20)])
    together = threading.Barrier(4)
    found = []

    def read(work, given):
        together.wait()
        found.append(work(given).f19.a7)

    decoded = (lambda given: decode(given, outer), b'{"f19": {"a7": 1}}')
    converted = (lambda given: convert(given, outer, ""), {"f19": {"a7": 1}})
    threads = [threading.Thread(target=read, args=each) for each in (decoded, converted) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1, 1], found
"""


def test_several_threads_may_decode_a_type_for_the_first_time_at_once():
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
