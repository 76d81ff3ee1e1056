"""Engines on simulated machines of several nodes, and with their memory locked: the same tokens everywhere."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core import SamplingParams, log
from infeng_core.errors import ResourceError, UsageError
from infeng_core.machine import topology

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = "the quick brown fox"
GIB = 1 << 30


def tokens(engine) -> tuple[int, ...]:
    return tuple(engine.generate(PROMPT, GREEDY)[0].token_ids)


def locked() -> int:
    return int(re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


@pytest.fixture
def two_nodes(folder, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this machine's memory be node 0 and its CPUs a node that does not exist, which is returned."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    missing = 1 + max([node.number for node in topology.read().nodes], default=0)
    folder.write("cpu/online", cpus)
    folder.node(0, "", 8 * GIB)
    folder.node(missing, cpus, 8 * GIB)
    folder.status(f"0,{missing}")
    monkeypatch.setattr(topology, "SYSTEM", folder.root)
    monkeypatch.setattr(topology, "STATUS", folder.root / "status")
    monkeypatch.setattr(log, "_warned", set())
    return missing


@pytest.mark.parametrize("place", ["local", "interleave", "first-touch"])
def test_a_placement_changes_no_token_even_where_the_system_refuses_it(
    make_engine: MakeEngine, two_nodes, capfd, place
):
    engine = make_engine(memory__place=place)
    assert engine.cpu.place(engine.config.threads).nodes == (two_nodes,)
    found = tokens(engine)
    warnings = capfd.readouterr().err.count("memory is not placed on NUMA nodes")
    if place == "first-touch":
        assert warnings == 0
    elif Path("/proc/self/numa_maps").exists():
        assert warnings == 1, "one line for weights and cache together"
    engine.close()
    assert found == tokens(make_engine(memory__place="first-touch", threads__nodes="all"))


def test_an_engine_on_a_node_without_usable_cores_is_an_error(make_engine: MakeEngine, two_nodes):
    with pytest.raises(UsageError, match=rf"threads\.nodes: node 0 has no CPU .*: choose of {two_nodes}"):
        make_engine(threads__nodes=(0,))


@pytest.mark.parametrize("load", ["copy", "mmap"])
def test_weights_cache_and_adapters_are_locked(make_engine: MakeEngine, tmp_path: Path, load):
    plain = make_engine(kv_cache__memory="4MB")
    gc.collect()  # engines of earlier tests, which hold their memory until then
    before = locked()
    try:
        engine = make_engine(kv_cache__memory="4MB", memory__lock=True, model__load=load)
    except ResourceError as error:
        pytest.skip(f"this system lets the process lock too little: {error}")
    weights = engine.model.nbytes
    assert locked() - before >= weights + engine.executable.kv_bytes
    held = locked()
    engine.adapters.load("a", tiny_adapter.write(tmp_path / "a", 1, rank=4), pin=True)
    assert locked() > held
    assert tokens(engine) == tokens(plain)
    engine.close()
    del engine


REFUSED = """
import ctypes, resource, sys
from infeng_core import Engine
from infeng_core.errors import ResourceError
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
libc = ctypes.CDLL(None)  # root may lock without limit (CAP_IPC_LOCK is bit 14), so that right is given up
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, sets)
sets[0] &= ~(1 << 14)
libc.capset(header, sets)
for load in ("copy", "mmap"):
    try:
        Engine(sys.argv[1], overrides={"memory.lock": True, "model.load": load, "threads.count": 1})
    except ResourceError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_refused_lock_says_how_to_get_the_right(make_engine: MakeEngine, tiny: Path):
    make_engine()  # converts the model
    done = subprocess.run([sys.executable, "-P", "-c", REFUSED, tiny], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "the system refuses to lock" in line
        assert "ulimit -l" in line
        assert "set memory.lock to false" in line
