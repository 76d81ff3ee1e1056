"""The adapters of one request, from its submission to its end, and the check that they can be combined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.adapters.invocation import last_occurrence
from infeng_core.adapters.records import Entry, Resident
from infeng_core.errors import InfengError, RequestError
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE


class Holder(Protocol):
    """The owner of the adapters behind references: the registry."""

    @property
    def changes(self) -> int:
        """Counts changes after which a request may be able to start."""

    def holds(self, contents: Iterable[str]) -> bool:
        """Return whether contents are in memory, by their ids."""

    def acquire(self, reference: AdapterReference) -> bool:
        """Give a request its adapters if all are in memory."""

    def release(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for now; it will acquire them again."""

    def close_reference(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for good."""

    def prefetch(self, references: Sequence[AdapterReference]) -> int:
        """Begin to load the adapters of waiting requests; return how many of the first do not lack room."""


class AdapterReference:
    """The adapters of one request. A scheduler takes them with ``acquire`` and gives them back with ``close``.

    Outside that time they may be loaded and evicted; within it they stay, even if their names are unloaded. A
    preempted request gives them back with ``release``: they may be evicted until it acquires them again, and it then
    has the same contents as before, or an error. An activated adapter acts from the last occurrence of its invocation
    in the prompt on; without one it is in memory and does not act.
    """

    __slots__ = (
        *("begins", "contents", "entries", "error", "invocations", "is_closed", "owner", "registry", "residents"),
        *("rows", "weights", "_occurrences", "_prompt"),
        "__weakref__",
    )

    def __init__(
        self,
        registry: Holder,
        entries: tuple[Entry, ...],
        weights: tuple[float, ...],
        prompt: NDArray[np.int32] | None = None,
    ) -> None:
        """Made by ``Registry.refer``."""
        self.registry = registry
        self.entries = entries
        self.weights = weights
        self.invocations: tuple[tuple[int, ...], ...] = ()
        """Of each of ``contents``."""
        self._prompt = np.empty(0, np.int32) if prompt is None else prompt
        self._occurrences: dict[tuple[int, ...], int | None] = {}  # of invocations that were searched
        self.contents: tuple[str, ...] = ()
        """Content ids at the first ``acquire``; later ones give the same contents."""
        self.residents: tuple[Resident, ...] = ()
        self.rows: tuple[tuple[Any, float], ...] = ()
        """(handle, weight) of each adapter that acts, in the request's order; empty until acquired."""
        self.begins: tuple[int, ...] = ()
        """First position on which each of ``rows`` acts; () if all act on all."""
        self.error: InfengError | None = None
        self.is_closed = False
        self.owner: Any = None
        """The request in the engine, set by the engine."""

    @property
    def uses(self) -> tuple[object, ...]:
        """Equal for requests that use the same adapters with the same weights."""
        return self.entries, self.weights, self.contents

    def known(self) -> tuple[tuple[str, float, int], ...] | None:
        """Return (content id, weight, first position) of each adapter that would act if it were acquired now.

        None: some contents are unknown.
        """
        residents = [resident for entry in self.entries if (resident := entry.resident) is not None]
        found = [(one.id, one.invocation) for one in residents]
        if self.contents:
            found = list(zip(self.contents, self.invocations, strict=True))
        if len(found) < len(self.entries):
            return None
        acting = ((id_, weight, self._begin(of)) for (id_, of), weight in zip(found, self.weights, strict=True))
        return tuple((id_, weight, begin) for id_, weight, begin in acting if begin is not None)

    def is_ready(self) -> bool:
        """Return whether all are in memory. It takes no lock, so ``acquire`` may still answer otherwise."""
        if self.contents:
            return self.registry.holds(self.contents)
        return all(entry.resident is not None for entry in self.entries)

    def hold(self, residents: tuple[Resident, ...]) -> None:
        """Have contents from now on; called by the registry, under its lock."""
        self.invocations = tuple(resident.invocation for resident in residents)
        self.contents = tuple(resident.id for resident in residents)
        pairs = zip(residents, self.weights, strict=True)
        acting = [
            (one.handle, weight, begin) for one, weight in pairs if (begin := self._begin(one.invocation)) is not None
        ]
        begins = tuple(begin for _, _, begin in acting)
        self.begins = begins if any(begins) else ()
        self.rows = tuple((handle, weight) for handle, weight, _ in acting)
        self.residents = residents  # last: the request counts as a holder from here on

    def _begin(self, invocation: tuple[int, ...]) -> int | None:
        """Return the first position on which an adapter with this invocation acts; None: it does not act."""
        if not invocation:
            return 0
        if invocation not in self._occurrences:
            self._occurrences[invocation] = last_occurrence(self._prompt, invocation)
        return self._occurrences[invocation]

    def acquire(self) -> bool:
        """Take the adapters if all of them are in memory; return whether the request has them."""
        return bool(self.residents) or (self.is_ready() and self.registry.acquire(self))

    def release(self) -> None:
        """Give the adapters back while the request does not run."""
        self.registry.release(self)

    def close(self) -> None:
        """Give the adapters back, or stop waiting for them; a second call does nothing."""
        self.registry.close_reference(self)


def check_combination(parts: Sequence[tuple[str, Resident, float]], max_stacked_rank: int) -> None:
    """Raise RequestError unless adapters (name, contents, weight) can be used on one row.

    A weight scales the product B A. DoRA also rescales the base's output, biases shift it, saved modules replace it
    and trained tokens single rows of it; a weight other than 1 is undefined for these. max_stacked_rank: the most rank
    rows of all together that the backend supports.
    """
    for name, resident, weight in parts:
        if resident.is_whole and weight != 1.0:
            kind = "saved modules" if resident.saves_modules else "DoRA magnitudes, biases or trained tokens"
            why = f"it has {kind}, so its weight can only be 1, not {weight:g}"
            raise RequestError(f"adapter {name}", why, "leave the weight out")
        if not abs(weight) * max(1.0, resident.reach) <= MAX_MAGNITUDE:
            why = f"its weight {weight:g} makes it add numbers whose squares float32 does not hold"
            raise RequestError(f"adapter {name}", why, "give a smaller one")
    saving = [name for name, resident, _ in parts if resident.saves_modules]
    if len(saving) > 1:
        why = "each replaces modules of the base, and only one can"
        raise RequestError(f"adapters {' and '.join(saving)}", why, "use one of them")
    _check_trained_tokens(parts)
    stacked = sum(resident.stacked_rank for _, resident, _ in parts)
    if stacked > max_stacked_rank:
        names = ", ".join(name for name, _, _ in parts)
        why = f"their stacked ranks add up to {stacked}, and a row has room for {max_stacked_rank}"
        raise RequestError(f"adapters {names}", why, "combine fewer, or adapters of lower rank")


def _check_trained_tokens(parts: Sequence[tuple[str, Resident, float]]) -> None:
    """Raise RequestError if two adapters on one row would replace the same rows of embeddings or head.

    A trained row is stored as its distance from the base's row, which another adapter's saved matrix is not.
    """
    owners: dict[int, str] = {}
    for name, resident, _ in parts:
        for token in sorted(resident.trained_tokens):
            if token in owners:
                why = f"both replace the embedding of token {token}, and only one can"
                raise RequestError(f"adapters {owners[token]} and {name}", why, "use one of them")
            owners[token] = name
    saving = next((name for name, resident, _ in parts if resident.saves_modules), None)
    training = next((name for name, resident, _ in parts if resident.trained_tokens and name != saving), None)
    if saving is not None and training is not None:
        why = f"{saving} replaces modules of the base, and {training} single rows of its embedding"
        raise RequestError(f"adapters {saving} and {training}", why, "use one of them")
