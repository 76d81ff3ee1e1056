"""Cores, hardware threads and NUMA nodes: this machine's, and those of a /sys made for the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infeng_core.cli import doctor
from infeng_core.machine import topology
from infeng_core.machine.cpu import Cpu
from infeng_core.machine.topology import cpu_list

MakeSystem = Callable[..., None]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSystem:
    """Return ``make({path: text}, allowed)``: what /sys/devices/system holds, and which CPUs are ours."""

    def make(files: dict[str, str], allowed: set[int]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(topology, "SYSTEM", tmp_path)
        monkeypatch.setattr(topology.os, "sched_getaffinity", lambda pid: allowed, raising=False)

    return make


def server() -> dict[str, str]:
    """Two sockets of two cores with two hardware threads each: 0-3 are first threads, 4-7 second ones."""
    files = {"cpu/online": "0-7"}
    for cpu in range(8):
        files[f"cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}"
        files[f"cpu/cpu{cpu}/topology/physical_package_id"] = str(cpu % 4 // 2)
    for node in (0, 1):
        files[f"node/node{node}/cpulist"] = f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}"
        files[f"node/node{node}/meminfo"] = f"Node {node} MemTotal:  2097152 kB\nNode {node} MemFree:  1024 kB"
    files["node/possible"] = "0-1"
    return files


def test_a_server_with_hyperthreads_and_two_nodes(system: MakeSystem) -> None:
    system(server(), {0, 1, 2, 4, 5})
    assert topology.topology() == {
        "online": 8,
        "allowed": 5,
        "cores": 3,
        "threads_per_core": 2,
        "sockets": 2,
        "nodes": [{"node": n, "cpus": 4, "memory": 2 << 30, "free": 1 << 20} for n in (0, 1)],
    }


def test_what_is_not_told_is_left_out(system: MakeSystem) -> None:
    system({}, {0, 1})
    assert topology.topology() == {"allowed": 2, "nodes": []}


def test_this_machine() -> None:
    found = topology.topology()
    assert found["allowed"] >= 1
    assert found.get("online", found["allowed"]) >= found["allowed"] >= found.get("cores", 1) >= 1
    assert sum(node["cpus"] for node in found["nodes"]) >= (found["allowed"] if found["nodes"] else 0)


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("0", {0}), ("0-2,8,10-11", {0, 1, 2, 8, 10, 11}), ("3-3", {3})]
)
def test_lists_are_written_as_the_kernel_writes_them(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


def test_people_read_what_the_engine_does_about_nodes_and_threads(system: MakeSystem) -> None:
    system(server(), {0, 1, 2, 4, 5})
    machine = {"cores": 5, "quota": 2.5, "topology": topology.topology()}
    assert doctor._cores(machine) == (
        "3 with 2 hardware threads each (a core's second adds little), 5 of 8 hardware threads allowed, in 2 sockets, "
        "limited to 2.5 cores' worth of time"
    )
    text = doctor._numa(machine["topology"]["nodes"])
    assert text.startswith("2 nodes (0: 4 hardware threads, 2.0 GiB; 1: 4 hardware threads, 2.0 GiB)")
    assert "numactl --cpunodebind=N --membind=N" in text
    assert doctor._numa(machine["topology"]["nodes"][:1]) == "1 node: nothing to place"
    assert doctor._numa([]) == "unknown"


@pytest.mark.parametrize(
    ("count", "cores", "quota", "workers"),
    [("auto", 4, None, 4), ("auto", 4, 2.5, 2), ("auto", 4, 0.5, 1), (3, 1, 1, 3)],
)
def test_workers_stay_within_the_quota_unless_they_are_set(
    count: int | str, cores: int, quota: float | None, workers: int
) -> None:
    cpu = Cpu("x86_64", "", frozenset(), {}, cores, quota)
    assert cpu.workers(count) == workers  # type: ignore[arg-type]
