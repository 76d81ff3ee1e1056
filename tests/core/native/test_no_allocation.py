"""The step path does not allocate: every malloc of the process is counted while programs run."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import infeng_core


@pytest.mark.slow
def test_a_step_allocates_nothing_however_long_it_is(build):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the counter forwards to glibc's malloc")
    counter = build("count_malloc.c")
    reference = Path(infeng_core.__file__).parent / "libinfeng_reference.so"
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("count_runs.py"), counter, build("toy.c"), reference],
        env={**os.environ, "LD_PRELOAD": str(counter), "PYTHONMALLOC": "malloc"},
        check=True,
        capture_output=True,
    )
    counts = json.loads(done.stdout)
    assert counts.pop("sampling, all filters") == counts.pop("sampling")
    allocating = counts.pop("a kernel that allocates")
    call = counts["one op"]  # what calling a function with five arrays costs Python itself
    assert counts == dict.fromkeys(counts, call)
    assert allocating >= call + 1
