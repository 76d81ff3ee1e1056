"""Steps of a mixture of experts on a CPU and a GPU together: the time of each layer by where its experts are computed.

docs/hybrid.md describes the model and its assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from infeng_simulate.mixture import Mixture

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]

LATENCY = 10e-6  # seconds until one side sees that the other is done
LAUNCHES = 20e-6  # seconds of a layer's launches on the GPU
VALUE_BYTES = 4  # of an activation that crosses the link, f32
MEMORY = {"split": 0.01, "hybrimoe": 0.5}  # weight of the latest step in an expert's average
FORESIGHT = 0.8  # share of the next layer's choices that a prediction knows (HybriMoE's prefetch)


@dataclass(frozen=True)
class Machine:
    """What a machine reaches, in bytes and int8 multiply-adds per second."""

    pcie: float
    dram: float
    hbm: float
    cpu_macs: float
    gpu_macs: float


@dataclass(frozen=True)
class Layer:
    """One layer's experts in ``order``, and what the layer takes for each cut j: the GPU computes the first j of them.

    Arrays but ``order`` have an element for each cut, 0 to len(order).
    """

    order: Counts  # experts with rows: residents by their rows, then the others by theirs, most rows first
    held: int  # residents among them
    moved: Reals  # bytes of weights that go to the GPU
    gpu: Reals  # seconds until the GPU is done
    gpu_busy: Reals  # the same without waiting for weights
    cpu: Reals  # seconds until the CPU is done
    handoff: float  # seconds of rows to the CPU and back, if it has any
    read: Reals  # bytes of weights that DRAM gives, to the CPU and to the link
    seconds: Reals


def layer(loads: Counts, resident: Flags, mixture: Mixture, machine: Machine) -> Layer:
    """Return the cuts of a layer. loads, resident: (experts,) rows of each expert, and whether it is on the GPU.

    An expert takes max(bytes / bandwidth, rows * macs / peak) on either side. The GPU begins one that is moved when
    its weights are there and the experts before it are done. DRAM gives the bytes of an expert that is not resident
    once, whoever computes it.
    """
    used = np.flatnonzero(loads)
    order = used[np.lexsort((used, -loads[used], ~resident[used]))]
    rows, is_moved, size = loads[order], ~resident[order], mixture.expert_bytes
    on_cpu = np.maximum(size / machine.dram, rows * mixture.expert_macs / machine.cpu_macs)
    on_gpu = np.maximum(size / machine.hbm, rows * mixture.expert_macs / machine.gpu_macs)
    moved = np.concatenate(([0.0], np.cumsum(size * is_moved)))
    there = moved / min(machine.pcie, machine.dram)  # seconds until the weights are on the GPU
    busy = np.concatenate(([0.0], np.cumsum(on_gpu)))
    gpu = busy.copy()
    gpu[1:] += np.maximum.accumulate(np.maximum(there[1:] * is_moved - busy[:-1], 0.0))
    cpu = np.concatenate((np.cumsum(on_cpu[::-1])[::-1], [0.0]))
    crossing = loads.sum() / mixture.chosen * mixture.hidden * VALUE_BYTES
    handoff = 2 * (LATENCY + crossing / machine.pcie)
    left = np.arange(float(len(order)), -1.0, -1.0)  # experts that the CPU computes
    read = left * size + moved
    seconds = np.maximum(np.maximum(gpu, cpu + handoff * (left > 0)), read / machine.dram)
    return Layer(order, int((~is_moved).sum()), moved, gpu, busy, cpu, float(handoff), read, seconds)


def greedy(layer: Layer) -> int:
    """Return HybriMoE's cut: the GPU takes the first expert or the CPU the last, whoever would be done earlier."""
    first, last = 0, len(layer.order)
    while first < last:
        if layer.gpu[first + 1] <= layer.cpu[last - 1] + layer.handoff:
            first += 1
        else:
            last -= 1
    return first


def draw(mixture: Mixture, rows: int, steps: int, skew: float, repeat: float, seed: int) -> tuple[Counts, Reals]:
    """Return the rows of each expert, (steps, layers, experts), and the experts' popularity, (layers, experts).

    In each layer the expert of rank r has weight (r + 1) ** -skew, and ranks are drawn. A row keeps each expert of its
    previous token with probability ``repeat`` and draws the rest by weight, without replacement.
    """
    rng = np.random.default_rng(seed)
    ranks = rng.permuted(np.tile(np.arange(mixture.experts), (mixture.layers, 1)), axis=1)
    weights = ((ranks + 1.0) ** -skew).astype(np.float32)
    chosen = np.zeros((mixture.layers, rows, mixture.experts), bool)
    loads = np.zeros((steps, mixture.layers, mixture.experts), np.int64)
    for step in range(-1, steps):
        keys = rng.standard_exponential(chosen.shape, np.float32) / weights[:, None, :]  # the first to arrive
        keys[chosen & (rng.random(chosen.shape, np.float32) < repeat)] = -1
        best = np.argpartition(keys, mixture.chosen - 1, axis=2)[..., : mixture.chosen]
        chosen[:] = False
        np.put_along_axis(chosen, best, True, axis=2)
        if step >= 0:
            loads[step] = chosen.sum(axis=1)
    popularity = mixture.chosen * weights.astype(np.float64) / weights.sum(axis=1, keepdims=True)
    return loads, np.minimum(1.0, popularity)


def foreseen(loads: Counts, popularity: Reals, seed: int) -> Counts:
    """Return what a prediction makes of ``loads``: FORESIGHT of the choices are right, the others follow popularity."""
    rng = np.random.default_rng(seed)
    right = rng.binomial(loads, FORESIGHT)
    shares = popularity / popularity.sum(axis=1, keepdims=True)
    return np.asarray(right + rng.multinomial((loads - right).sum(axis=-1), shares))


@dataclass
class Cache:
    """The experts on the GPU, ``slots`` in each layer, and the scores that decide which stay."""

    policy: str  # of MEMORY
    average: Reals  # (layers, experts) share of the rows that choose an expert, over steps
    slots: int
    scores: Reals = field(init=False)
    resident: Flags = field(init=False)
    credit: float = 0.0  # bytes that the idle link could have moved

    def __post_init__(self) -> None:
        """Begin with the most popular experts."""
        self.scores = self.average.copy()
        self.resident = np.zeros(self.scores.shape, bool)
        best = np.argsort(-self.scores, axis=1, kind="stable")[:, : self.slots]
        np.put_along_axis(self.resident, best, True, axis=1)

    def update(self, index: int, moved: Counts, share: Reals, following: Counts, spare: float, size: float) -> float:
        """Learn a layer's choices, keep what was moved for it, use the idle link; return the bytes that this moves.

        share: (experts,) of the rows. following: (layers, experts) rows that are predicted, for prefetch. spare: bytes
        that the link could have moved besides.
        """
        is_split = self.policy == "split"
        self.average[index] += MEMORY[self.policy] * (share - self.average[index])
        self.scores[index] = (share + self.average[index]) / 2 if is_split else self.average[index]
        for expert in moved:
            self.admit(index, expert, 0.0 if is_split else -np.inf)
        self.credit += max(spare, 0.0)
        if is_split:
            return self._fill(index, np.where(self.resident[index], -1.0, self.scores[index]), size, 0.0)
        index += 1
        if index == len(following):
            return 0.0
        return self._fill(index, np.where(self.resident[index], -1.0, following[index]), size, -np.inf)

    def admit(self, index: int, expert: int, margin: float) -> bool:
        """Put an expert in the place of the one with the lowest score, if its own is higher by ``margin``."""
        here = np.flatnonzero(self.resident[index])
        if not len(here):
            return False
        worst = here[np.argmin(self.scores[index, here])]
        if self.scores[index, expert] <= self.scores[index, worst] + margin:
            return False
        self.resident[index, [worst, expert]] = False, True
        return True

    def _fill(self, index: int, wanted: Reals, size: float, margin: float) -> float:
        """Move the most wanted experts while the link's credit lasts; wanted: (experts,), above 0 for candidates."""
        moved = 0.0
        while self.credit >= size and wanted.max() > 0:
            best = int(np.argmax(wanted))
            wanted[best] = -1
            if not self.admit(index, best, margin):
                break
            self.credit -= size
            moved += size
        self.credit = min(self.credit, size)  # an idle link saves nothing up but the expert under way
        return moved


POLICIES = {
    "alone": "everything on the CPU",
    "cpu": "experts on the CPU, everything else on the GPU",
    "gpu": "everything on the GPU, experts moved in every step",
    "pinned": "the most popular experts on the GPU for good, others on the CPU",
    "hybrimoe": "HybriMoE's greedy schedule, cache and prefetch",
    "split": "the best cut of every layer, and a cache by score",
}


def simulate(
    policy: str, loads: Counts, popularity: Reals, mixture: Mixture, machine: Machine, slots: int = 0, seed: int = 0
) -> dict[str, float]:
    """Return the figures of one of POLICIES. loads, popularity: from ``draw``. slots: experts of a layer on the GPU."""
    cache = Cache(policy, popularity.copy(), slots if policy in ("pinned", *MEMORY) else 0)
    predicted = foreseen(loads, popularity, seed) if policy == "hybrimoe" else loads
    rows, is_alone = int(loads[0, 0].sum()) // mixture.chosen, policy == "alone"
    bandwidth, peak = (machine.dram, machine.cpu_macs) if is_alone else (machine.hbm, machine.gpu_macs)
    dense = max(mixture.other_bytes / bandwidth, rows * mixture.other_macs / peak) / mixture.layers
    spent = dict.fromkeys(("seconds", "cpu", "gpu", "moved", "hits"), 0.0)
    for step, following in zip(loads, predicted, strict=True):
        for index, rows_of in enumerate(step):
            one = layer(rows_of, cache.resident[index], mixture, machine)
            cut = {"gpu": len(one.order), "pinned": one.held, "split": int(np.argmin(one.seconds))}.get(policy, 0)
            cut = greedy(one) if policy == "hybrimoe" else cut
            seconds = dense + (one.cpu[0] if is_alone else LAUNCHES + one.seconds[cut])
            moved = one.moved[cut]
            if policy in MEMORY:
                spare = min(seconds * machine.pcie - moved, seconds * machine.dram - one.read[cut])
                kept, share = one.order[one.held : max(cut, one.held)], rows_of / rows
                moved += cache.update(index, kept, share, following, spare, mixture.expert_bytes)
            spent["seconds"] += seconds
            spent["cpu"] += one.cpu[cut] + dense * is_alone
            spent["gpu"] += (one.gpu_busy[cut] + dense) * (not is_alone)
            spent["moved"] += moved
            spent["hits"] += rows_of[one.order[: one.held]].sum()
    steps = len(loads)
    return {
        "tokens_per_s": rows * steps / spent["seconds"],
        "step_ms": 1000 * spent["seconds"] / steps,
        "cpu_share": spent["cpu"] / spent["seconds"],
        "gpu_share": spent["gpu"] / spent["seconds"],
        "pcie_share": spent["moved"] / machine.pcie / spent["seconds"],
        "moved_bytes": spent["moved"] / steps,
        "hit_share": spent["hits"] / loads.sum(),
    }
