"""Cores, hardware threads and NUMA nodes of this machine and of simulated ones."""

from __future__ import annotations

import os

import pytest
from infeng_doctor import doctor

from infeng_core.machine.topology import HardwareThread, cpu_list, read

GIB = 1 << 30


def test_a_core_is_known_by_its_lowest_hardware_thread(laptop) -> None:
    found = laptop.read(range(4))
    assert found.threads == tuple(HardwareThread(cpu, cpu % 2, 0, 0, 0) for cpu in range(4))
    assert (found.cores, found.threads_per_core, found.online) == (2, 2, 4)


def test_a_server_has_nodes_sockets_and_several_caches(server) -> None:
    found = server.read(range(16))
    assert [thread.node for thread in found.threads] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert [thread.package for thread in found.threads] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert [thread.l3 for thread in found.threads] == [0, 0, 2, 2, 4, 4, 6, 6] * 2
    nodes = [{"node": n, "cpus": 8, "memory": 16 * GIB, "free": 8 * GIB} for n in (0, 1)]
    assert found.facts() == {
        "online": 16,
        "allowed": 16,
        "cores": 8,
        "threads_per_core": 2,
        "sockets": 2,
        "nodes": nodes,
    }


def test_offline_hardware_threads_are_left_out(server) -> None:
    server.write("cpu/online", "0-2,4-15")
    found = server.read(range(16))
    assert 3 not in {thread.cpu for thread in found.threads}
    assert (found.online, len(found.threads), found.cores) == (15, 15, 8)


def test_a_container_sees_its_allowed_part_of_the_machine(server) -> None:
    server.status("1")
    found = server.read([5, 6, 13])
    assert [(thread.cpu, thread.core, thread.node) for thread in found.threads] == [(5, 5, 1), (6, 6, 1), (13, 5, 1)]
    assert [(node.number, node.usable) for node in found.nodes] == [(0, False), (1, True)]
    facts = found.facts()
    assert (facts["online"], facts["allowed"], facts["cores"], facts["sockets"]) == (16, 3, 2, 1)


def test_nodes_may_differ_in_cores_and_memory_or_have_no_cores(folder) -> None:
    folder.write("cpu/online", "0-5")
    for cpu in range(6):
        folder.core((cpu,), 0)
    folder.node(0, "0-1", 4 * GIB)
    folder.node(1, "2-5", 0)
    folder.node(10, "", 64 * GIB)
    found = folder.read(range(6))
    assert [thread.node for thread in found.threads] == [0, 0, 1, 1, 1, 1]
    assert [(node.number, len(node.cpus), node.memory) for node in found.nodes] == [
        (0, 2, 4 * GIB),
        (1, 4, 0),
        (10, 0, 64 * GIB),
    ]


def test_missing_topology_files_are_left_out(folder) -> None:
    found = folder.read([0, 1])
    assert found.facts() == {"allowed": 2, "nodes": []}
    assert found.threads == (HardwareThread(0, 0, 0, 0, -1), HardwareThread(1, 1, 0, 0, -1))


def test_a_node_without_its_files_and_garbage_are_no_error(laptop) -> None:
    (laptop.root / "node/node0/meminfo").unlink()
    (laptop.root / "node/node0/cpulist").unlink()
    laptop.write("cpu/cpu1/topology/physical_package_id", "-1")
    laptop.write("cpu/cpu1/topology/thread_siblings_list", "what")
    found = laptop.read(range(4))
    assert found.nodes[0].memory is None
    assert found.threads[1] == HardwareThread(1, 1, 0, 0, 0)
    assert found.facts()["nodes"] == [{"node": 0, "cpus": 0}]


def test_this_machines_topology_is_consistent() -> None:
    found = read()
    assert {thread.cpu for thread in found.threads} == os.sched_getaffinity(0)
    facts = found.facts()
    assert facts.get("online", facts["allowed"]) >= facts["allowed"] >= facts.get("cores", 1) >= 1
    assert sum(node["cpus"] for node in facts["nodes"]) >= (facts["allowed"] if facts["nodes"] else 0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("0", {0}), ("0-2,8,10-11", {0, 1, 2, 8, 10, 11}), ("3-3", {3}), ("0-x", set())],
)
def test_lists_are_written_as_the_kernel_writes_them(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


def test_the_report_describes_the_machine(server) -> None:
    facts = server.read([0, 1, 2, 8, 9]).facts()
    machine = {"cores": 5, "quota": 2.5, "topology": facts}
    assert doctor._cores(machine) == (
        "3 with 2 hardware threads each (a core's second adds little), 5 of 16 hardware threads allowed, "
        "limited to 2.5 cores' worth of time"
    )
    assert doctor._numa(facts["nodes"]) == "2 nodes (0: 8 hardware threads, 16 GiB; 1: 8 hardware threads, 16 GiB)"
    assert doctor._numa(facts["nodes"][:1]) == "1 node: nothing to place"
    assert doctor._numa([]) == "unknown"
