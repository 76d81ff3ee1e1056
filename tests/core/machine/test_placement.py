"""The CPUs of workers on simulated machines, their order, and the place of their memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from infeng_doctor import doctor

from infeng_core.errors import UsageError
from infeng_core.machine.placement import Placement, choose, order, pages
from infeng_core.machine.topology import Topology
from infeng_core.settings.config import MemorySection, ThreadsSection

GIB = 1 << 30


def place(topology: Topology, *, quota: float | None = None, model: int | None = None, **threads: Any) -> Placement:
    """Return what these settings of ``threads`` choose."""
    return choose(topology, quota, ThreadsSection(**threads), model)


def cpus(topology: Topology, **threads: Any) -> list[int]:
    return list(place(topology, **threads).cpus)


def memory(topology: Topology, placement: Placement, **settings: Any) -> tuple[str, list[int], bool]:
    found = pages(MemorySection(**settings), topology, placement)
    return found.policy, found.nodes, found.lock


def test_each_worker_has_a_core_for_itself(laptop) -> None:
    found = place(laptop.read(range(4)))
    assert (found.workers, found.cpus, found.pinned, found.nodes) == (2, (0, 1), True, (0,))
    assert found.why == ("one hardware thread per core: a second one adds little",)


@pytest.mark.parametrize(
    ("smt", "count", "workers", "used"),
    [
        ("auto", "auto", 2, [0, 1]),
        ("auto", 4, 4, [0, 1, 2, 3]),  # asked for more than there are cores
        ("auto", 1, 1, [0, 1]),
        (True, "auto", 4, [0, 1, 2, 3]),
        (True, 3, 3, [0, 1, 2, 3]),
        (False, "auto", 2, [0, 1]),
        (False, 4, 4, [0, 1]),  # they share
    ],
)
def test_the_settings_decide_about_sibling_threads(laptop, smt, count, workers, used) -> None:
    found = place(laptop.read(range(4)), smt=smt, count=count)
    assert (found.workers, list(found.cpus)) == (workers, used)


def test_cores_come_before_siblings_and_are_spread_over_nodes_and_caches(server) -> None:
    topology = server.read(range(16))
    assert cpus(topology, nodes="all", smt=True) == [0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15]
    assert cpus(topology, nodes=(1,)) == [4, 6, 5, 7]
    assert {thread.cpu for thread in order(topology.threads)} == set(range(16))


def test_where_only_a_second_hardware_thread_is_allowed_it_counts_as_the_core(server) -> None:
    assert cpus(server.read([0, 9, 10, 2])) == [0, 2, 9]


def test_one_node_is_used_if_the_model_fits_there(server) -> None:
    topology = server.read(range(16))
    small, large = place(topology, model=10 * GIB), place(topology, model=14 * GIB)
    assert (small.nodes, small.workers, small.pinned, small.confined) == ((0,), 4, True, True)
    assert small.why[0] == "node 0 alone: it has most cores (4), and the model fits into its memory"
    assert (large.nodes, large.workers) == ((0, 1), 8)
    assert large.why[0] == "all nodes: the model does not fit into the memory of node 0"
    assert place(topology).why[0].endswith("if the model fits into its memory")


def test_the_node_with_most_allowed_cores_is_used(server) -> None:
    assert place(server.read([0, 1, 4, 5, 6])).nodes == (1,)
    assert place(server.read([0, 1, 8, 9, 4, 5, 6])).nodes == (1,)  # cores count, not hardware threads


def test_more_workers_than_a_node_has_cores_take_all_nodes(server) -> None:
    topology = server.read(range(16))
    assert place(topology, count=4).nodes == (0,)
    found = place(topology, count=5)
    assert (found.nodes, found.pinned, found.confined) == ((0, 1), False, True)
    assert place(topology, count=8, smt=True).nodes == (0,)


def test_a_node_whose_memory_a_container_does_not_give_is_not_chosen_alone(server) -> None:
    server.status("1")
    topology = server.read([0, 1, 2, 4])
    found = place(topology, model=GIB)
    assert (found.nodes, found.workers) == ((0, 1), 4)
    assert memory(topology, found) == ("first-touch", [], False)  # there is one node to choose


def test_a_node_without_memory_holds_no_model(folder) -> None:
    folder.write("cpu/online", "0-5")
    for cpu in range(6):
        folder.core((cpu,), 0)
    folder.node(0, "0-1", 4 * GIB)
    folder.node(1, "2-5", 0)
    folder.node(2, "", 64 * GIB)
    topology = folder.read(range(6))
    found = place(topology, model=GIB)
    assert found.nodes == (0, 1)
    assert memory(topology, found) == ("prefer", [0], False)


@pytest.mark.parametrize("nodes", [(2,), (0, 5), ()])
def test_nodes_without_usable_cores_are_an_error_that_names_the_others(server, nodes) -> None:
    with pytest.raises(UsageError, match=r"threads\.nodes: .*: choose of 0, 1, or write auto or all"):
        place(server.read(range(16)), nodes=nodes)


def test_offline_cores_get_no_worker(server) -> None:
    server.write("cpu/online", "0,2-15")
    assert cpus(server.read(range(16)), nodes=(0,)) == [0, 2, 9, 3]


def test_an_unknown_machine_has_a_core_for_each_cpu(folder) -> None:
    topology = folder.read([0, 3])
    found = place(topology)
    assert (found.cpus, found.pinned, found.confined, found.why) == ((0, 3), True, False, ())
    assert memory(topology, found, lock=True) == ("first-touch", [], True)


@pytest.mark.parametrize(
    ("count", "quota", "workers", "pinned"),
    [("auto", None, 4, True), ("auto", 2.5, 2, False), ("auto", 0.5, 1, False), (3, 1, 3, False)],
)
def test_workers_stay_within_the_quota_unless_they_are_set(server, count, quota, workers, pinned) -> None:
    found = place(server.read(range(4)), count=count, quota=quota)
    assert (found.workers, found.pinned) == (workers, pinned)
    assert ("the control group grants 2.5 CPUs' worth of time" in found.why) == (quota == 2.5)


@pytest.mark.parametrize(
    ("allowed", "count", "setting", "pinned"),
    [(4, 4, "auto", True), (4, 2, "auto", False), (1, 1, "auto", False), (4, 2, True, True), (4, 4, False, False)],
)
def test_workers_are_pinned_where_each_core_has_one_or_as_the_manifest_says(folder, allowed, count, setting, pinned):
    assert place(folder.read(range(allowed)), count=count, pin=setting).pinned is pinned


def test_a_pool_is_told_cpus_only_where_they_are_not_all(server) -> None:
    all_cores = server.read(range(4))
    assert place(all_cores, count=2).mask == []
    assert place(all_cores, count=4).mask == [0, 2, 1, 3]
    assert place(server.read(range(16)), count=2).mask == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("nodes", "setting", "policy"),
    [
        ((0,), "auto", ("prefer", [0])),
        ((1,), "local", ("prefer", [1])),
        ("all", "auto", ("interleave", [0, 1])),
        ("all", "local", ("prefer", [0, 1])),
        ((1,), "interleave", ("interleave", [1])),
        ("all", "first-touch", ("first-touch", [])),
    ],
)
def test_pages_lie_on_the_nodes_of_the_workers(server, nodes: str | Iterable[int], setting, policy) -> None:
    topology = server.read(range(16))
    assert memory(topology, place(topology, nodes=nodes), place=setting) == (*policy, False)


@pytest.mark.parametrize("setting", ["auto", "local", "interleave", "first-touch"])
def test_one_node_needs_no_placement(laptop, setting) -> None:
    topology = laptop.read(range(4))
    assert memory(topology, place(topology), place=setting) == ("first-touch", [], False)


def test_the_report_names_the_chosen_cpus_and_the_reasons(server) -> None:
    topology = server.read(range(16))
    found = place(topology)
    assert doctor._cpus({"cpus": found.cpus, "pinned": found.pinned, "why": found.why}) == (
        "0, 2, 1, 3, in this order; node 0 alone: it has most cores (4), and if the model fits into its memory; "
        "one hardware thread per core: a second one adds little"
    )
    for policy, words in (("prefer", "on node 0, elsewhere when it is full"), ("interleave", "in turn on the nodes 0")):
        text = doctor._pages({"policy": policy, "nodes": [0], "lock": True})
        assert text == f"weights, cache and adapters: {words}, locked"
    assert "touches them first" in doctor._pages({"policy": "first-touch", "nodes": [], "lock": False})


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([0, 1], "0, 1"), ([0, 1, 2, 5, 4], "0-2, 5, 4")])
def test_runs_of_cpus_are_written_short(numbers, text) -> None:
    assert doctor.ranges(numbers) == text
