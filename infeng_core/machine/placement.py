"""The CPUs on which workers run and the NUMA nodes that hold their memory.

Hardware threads of one core share its ports, caches and memory requests, so a second one adds little to loops that
keep either busy, and halves the first one's caches. By default a worker therefore has a core for itself, and the
sibling threads serve other work (Python, tokenizers, loaders).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, Protocol

from infeng_core import _native
from infeng_core.errors import UsageError
from infeng_core.log import get_logger, warn_once
from infeng_core.machine.topology import HardwareThread, Topology

ROOM = 1.25
"""A model fits a node that has this many times its bytes: cache, scratch and the system need some too."""


class ThreadSettings(Protocol):
    """The section ``threads`` of a manifest."""

    @property
    def count(self) -> int | Literal["auto"]:
        """Workers."""

    @property
    def pin(self) -> bool | Literal["auto"]:
        """Whether each worker stays on one CPU."""

    @property
    def smt(self) -> bool | Literal["auto"]:
        """Whether several workers may share a core."""

    @property
    def nodes(self) -> Literal["auto", "all"] | tuple[int, ...]:
        """NUMA nodes whose cores the workers use."""


class MemorySettings(Protocol):
    """The section ``memory`` of a manifest."""

    @property
    def lock(self) -> bool:
        """Whether weights, cache and adapters are protected from being swapped out."""

    @property
    def place(self) -> Literal["auto", "local", "interleave", "first-touch"]:
        """The policy that chooses the node of a page."""


@dataclass(frozen=True)
class Placement:
    """The CPUs and nodes of a pool's workers."""

    workers: int
    cpus: tuple[int, ...]  # in the order of the workers
    nodes: tuple[int, ...]  # NUMA nodes of these CPUs
    pinned: bool  # worker i stays on cpus[i]; else all share them
    confined: bool  # the process may use further CPUs
    why: tuple[str, ...]  # a sentence for each choice that was made

    @property
    def mask(self) -> list[int]:
        """The argument ``cpus`` of ``_native.Pool``."""
        return list(self.cpus) if self.pinned or self.confined else []


def choose(
    topology: Topology, quota: float | None, threads: ThreadSettings, model_bytes: int | None = None
) -> Placement:
    """Return the CPUs of the workers.

    quota: CPUs' worth of time that the control group grants. model_bytes: of the weights; None: they fit anywhere.
    Raises UsageError for nodes on which this process has no CPU.
    """
    nodes, why_nodes = _nodes(topology, threads, model_bytes)
    candidates = [thread for thread in topology.threads if thread.node in nodes]
    ordered = order(candidates)
    cores = len({thread.core for thread in candidates})
    usable, why_smt = _siblings(threads, cores, len(ordered))
    limit = int(quota) if quota else usable
    workers = max(1, min(usable, limit)) if threads.count == "auto" else threads.count
    why = [why_nodes, why_smt]
    if threads.count == "auto" and workers < usable:
        why.append(f"the control group grants {quota:g} CPUs' worth of time")
    cpus = tuple(thread.cpu for thread in ordered[:usable])
    # Next to another busy process, a pinned worker keeps its share of the core, and the other workers take its tiles.
    # An unpinned one may be moved onto another worker's core.
    pinned = workers == usable > 1 if threads.pin == "auto" else threads.pin
    confined = usable < len(topology.threads)
    return Placement(workers, cpus, nodes, pinned, confined, tuple(filter(None, why)))


def order(threads: Iterable[HardwareThread]) -> list[HardwareThread]:
    """Return ``threads`` in the order of the workers: first one thread of each core, spread over nodes and caches.

    A few workers on many cores thus use all memory channels and all caches of level 3.
    """
    ranks: dict[int, int] = {}  # threads of a core so far

    def rank(thread: HardwareThread) -> int:
        ranks[thread.core] = ranks.get(thread.core, -1) + 1
        return ranks[thread.core]

    result: list[HardwareThread] = []
    for layer in _groups(sorted(threads, key=lambda thread: thread.cpu), rank):
        nodes = _groups(layer, lambda thread: thread.node)
        result += _in_turn([_in_turn(_groups(node, lambda thread: thread.l3)) for node in nodes])
    return result


def pages(memory: MemorySettings, topology: Topology, placement: Placement) -> _native.Pages:
    """Return the placement of arenas; no policy on a machine with one node, or where nodes may not be named."""
    usable = [node.number for node in topology.nodes if node.usable and node.memory != 0]
    nodes = [node for node in placement.nodes if node in usable]
    place = memory.place
    if place == "auto":
        place = "local" if len(nodes) == 1 else "interleave"
    if place == "first-touch" or len(usable) < 2 or not nodes:
        return _native.Pages(lock=memory.lock)
    return _native.Pages("prefer" if place == "local" else "interleave", nodes, memory.lock)


def report(place_error: int) -> None:
    """Log once that the system refused to place pages; place_error: its errno, 0 for no refusal. The engine goes on."""
    if place_error:
        reason = f"{os.strerror(place_error)} (mbind); pages stay on the node that touches them first"
        warn_once(get_logger(__name__), "memory is not placed on NUMA nodes", reason=reason)


def _nodes(topology: Topology, threads: ThreadSettings, model_bytes: int | None) -> tuple[tuple[int, ...], str]:
    """Return the nodes whose CPUs are used, and why."""
    known = tuple(sorted({thread.node for thread in topology.threads}))
    here = {node: [thread for thread in topology.threads if thread.node == node] for node in known}
    if not isinstance(threads.nodes, str):
        return _named(threads.nodes, known), "threads.nodes names the nodes"
    if len(known) == 1:
        return known, ""
    if threads.nodes == "all":
        return known, "threads.nodes takes all nodes"
    best = max(known, key=lambda node: (len({thread.core for thread in here[node]}), -node))
    cores = len({thread.core for thread in here[best]})
    room = len(here[best]) if threads.smt is True else cores
    memory = next((node.memory for node in topology.nodes if node.number == best), None)
    usable = next((node.usable for node in topology.nodes if node.number == best), True)
    if threads.count != "auto" and threads.count > room:
        return known, f"all nodes: threads.count is more than the {room} of node {best}"
    if not usable:
        return known, f"all nodes: this process may not have memory of node {best}"
    if model_bytes is not None and memory is not None and model_bytes * ROOM > memory:
        return known, f"all nodes: the model does not fit into the memory of node {best}"
    fits = "the model fits into its memory" if model_bytes is not None else "if the model fits into its memory"
    return (best,), f"node {best} alone: it has most cores ({cores}), and {fits}"


def _named(nodes: Collection[int], known: tuple[int, ...]) -> tuple[int, ...]:
    strange = sorted(set(nodes) - set(known))
    if strange or not nodes:
        what = f"node {strange[0]} has no CPU that this process may use" if strange else "no node is named"
        remedy = f"choose of {', '.join(map(str, known))}, or write auto or all"
        raise UsageError("threads.nodes", what, remedy)
    return tuple(sorted(nodes))


def _siblings(threads: ThreadSettings, cores: int, hardware: int) -> tuple[int, str]:
    """Return how many of the ordered hardware threads are used, and why."""
    if hardware == cores:
        return cores, ""
    if threads.smt is True:
        return hardware, "threads.smt takes every hardware thread"
    if threads.smt == "auto" and threads.count != "auto" and threads.count > cores:
        return hardware, f"threads.count is more than the {cores} cores: their second hardware threads are used too"
    return cores, "one hardware thread per core: a second one adds little"


def _groups(threads: Iterable[HardwareThread], key: Callable[[HardwareThread], Hashable]) -> list[list[HardwareThread]]:
    """Return the threads grouped by key, in the order in which keys first occur."""
    found: dict[Hashable, list[HardwareThread]] = {}
    for thread in threads:
        found.setdefault(key(thread), []).append(thread)
    return list(found.values())


def _in_turn(lists: Sequence[Sequence[HardwareThread]]) -> list[HardwareThread]:
    """Return the first of each list, then the second of each, and so on."""
    return [thread for turn in zip_longest(*lists) for thread in turn if thread is not None]
