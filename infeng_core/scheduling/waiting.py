"""Which waiting sequence may start: the first in the policy's order, unless its adapters are still being loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from infeng_core.batch import AdapterReference, RunningRequest
from infeng_core.errors import InfengError, PluginError
from infeng_core.scheduling.policy import Policy

LOOKAHEAD = 64
"""For how many sets of adapters that requests wait for, the next ones first, room is made."""


class Waiting:
    """Sequences that do not run, in the order of a policy.

    Where the adapters of one are not in memory, others may pass while they are loaded, since no sequence should wait
    for the storage of another. A sequence whose adapters find no room beside the running ones is overtaken by at most
    ``patience`` others; then all sequences behind it wait as well. Every running sequence ends, its adapters may then
    leave, and the first in the order gets their room (``adapters/prefetch.py``), so no sequence starves.
    """

    def __init__(self, policy: Policy, patience: int, name: str = "scheduler") -> None:
        """Begin with no sequence. name: what errors call the policy."""
        self._policy = policy
        self._name = name
        self._patience = patience
        # of each that waits: by how many while its adapters lacked room
        self._overtaken: dict[RunningRequest, int] = {}
        # of those with adapters, by their set
        self._references: dict[RunningRequest, tuple[Hashable, AdapterReference]] = {}
        self._sets: Counter[Hashable] = Counter()  # of adapters, by how many wait for them
        self._lacking: set[Hashable] = set()  # sets that wait for memory which running requests hold
        self._prefetched_at = self._idle_at = -1  # the registry's count of changes; -1: the waiting ones have changed

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._overtaken)

    def __contains__(self, sequence: object) -> bool:
        """Return whether a sequence waits."""
        return sequence in self._overtaken

    def __iter__(self) -> Iterator[RunningRequest]:
        """Iterate over the waiting sequences, in the order in which they came here."""
        return iter(self._overtaken)

    def add(self, sequence: RunningRequest, now: float) -> None:
        """Let a sequence wait."""
        self._policy.add(sequence, now)
        self._overtaken[sequence] = 0
        if sequence.adapters is not None:
            uses = sequence.adapters.uses
            self._references[sequence] = uses, sequence.adapters
            self._sets[uses] += 1
        self._prefetched_at = self._idle_at = -1

    def remove(self, sequence: RunningRequest, now: float) -> None:
        """Let one of them wait no longer."""
        del self._overtaken[sequence]
        if sequence in self._references:
            uses, _ = self._references.pop(sequence)
            self._sets[uses] -= 1
            if not self._sets[uses]:
                del self._sets[uses]
        self._prefetched_at = self._idle_at = -1
        self._policy.remove(sequence, now)

    def take(self, fits: Callable[[RunningRequest], bool], now: float) -> RunningRequest | None:
        """Return the first that has its adapters, acquired, if it ``fits`` and no other starves by that; else None.

        It waits until ``remove`` is called for it.
        """
        changes = self._changes()  # before any sequence is looked at: what comes in meanwhile is a reason to look again
        if self._idle_at == changes:
            return None
        passed: list[RunningRequest] = []
        count = left = len(self)
        for sequence in self._order(now):
            left -= 1
            reference = sequence.adapters
            if reference is None or reference.is_ready():
                if not fits(sequence):
                    return None
                if reference is None or reference.acquire():
                    for other in passed:
                        self._overtaken[other] += 1
                    return sequence
                if len(self) > count:
                    return None  # its adapters left when others had made room for it, who wait now as well
            self.prefetch(now)
            if reference is not None and self._references[sequence][0] in self._lacking:
                if self._overtaken[sequence] >= self._patience:
                    return None
                passed.append(sequence)
        if left == 0:  # else the policy holds some back, for as long as it likes
            self._idle_at = changes
        return None

    def prefetch(self, now: float) -> None:
        """Bring in adapters for the waiting sequences, if anything has changed since the last time."""
        changes = self._changes()
        if changes == self._prefetched_at or not self._references:
            return
        heads: dict[Hashable, AdapterReference] = {}
        for sequence in self._order(now):
            if sequence in self._references:
                heads.setdefault(*self._references[sequence])
                if len(heads) == min(len(self._sets), LOOKAHEAD):
                    self._prefetched_at = changes  # else the policy holds some back, and may not the next time
                    break
        references = list(heads.values())
        served = references[0].registry.prefetch(references) if references else 0
        self._lacking = set(list(heads)[served:])

    def _order(self, now: float) -> Iterator[RunningRequest]:
        """Iterate over the policy's order; raises PluginError where it names one that does not wait."""
        left = len(self._overtaken)
        try:
            for sequence in self._policy.order(now):
                if left == 0 or sequence not in self._overtaken:
                    raise PluginError(self._name, "order() names requests that do not wait, or one twice", "use fcfs")
                left -= 1
                yield sequence
        except InfengError:
            raise
        except Exception as error:  # of what cannot be looked for, such as a list
            raise PluginError(self._name, f"order() raised {type(error).__name__}: {error}", "use fcfs") from error

    def _changes(self) -> int:
        """Return the registry's count of changes, where a sequence waits for adapters."""
        for _, reference in self._references.values():
            return reference.registry.changes
        return -2
