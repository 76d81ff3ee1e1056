"""Which adapters are brought in for the requests that wait, and which stay for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infeng_core.adapters.lease import Lease
from infeng_core.adapters.loading import Loading
from infeng_core.adapters.records import Entry
from infeng_core.adapters.shelf import Shelf
from infeng_core.errors import InfengError, ResourceError


def stage(shelf: Shelf, loading: Loading, leases: Iterable[Lease], fail: Callable[[Lease, InfengError], None]) -> None:
    """Begin to load what the requests of ``leases`` need, the first before the others. Called under the lock.

    Requests that run keep their adapters and pinned ones stay. In the rest of the memory each request in turn gets
    room for its own, up to the first for which there is none: it waits for somebody else's end, and gets that room
    before any other. What nobody in that row wants leaves for it, the longest unused first. A request whose adapters
    can never fit gets a ResourceError.
    """
    held = shelf.held()
    places, spare = shelf.room(held)
    kept: set[Entry] = set()
    wanted: list[Entry] = []
    for lease in leases:
        if lease.error is not None:
            continue
        _attach_known(shelf, lease)
        residents = {entry.resident for entry in lease.entries if entry.resident is not None} - held
        missing = [e for e in lease.entries if e.resident is None and e not in shelf.coming and e not in kept]
        room = places - len(residents) - len(missing)
        left = spare - sum(r.nbytes for r in residents) - sum(e.nbytes or 0 for e in missing)
        if room < 0 or left < 0:
            error = _never(shelf, lease)
            if error is None:
                break
            fail(lease, error)
            continue
        places, spare = room, left
        held |= residents
        kept.update(lease.entries)
        wanted += missing
    loading.kept = kept
    for entry in wanted:
        if not shelf.make_room(1, entry.nbytes or 0, loading.is_wanted):
            break
        loading.begin(entry)


def _attach_known(shelf: Shelf, lease: Lease) -> None:
    """Give names whose contents are in memory under another name those contents."""
    for entry in lease.entries:
        if entry.resident is None and entry.id in shelf.residents:
            shelf.attach(entry, shelf.residents[entry.id])
            shelf.ring()


def _never(shelf: Shelf, lease: Lease) -> ResourceError | None:
    """Return the error of a request whose adapters do not fit beside the pinned ones, whoever ends; else None."""
    pinned = shelf.pinned()
    needed = [entry for entry in lease.entries if entry.resident is None or entry.resident not in pinned]
    nbytes = sum(entry.nbytes or 0 for entry in needed)
    if len(needed) > shelf.most - len(pinned):
        why = f"adapters.max_resident is {shelf.most}, of which {len(pinned)} are pinned"
        remedy = "raise it, or pin fewer"
    elif shelf.budget is not None and nbytes > shelf.budget - sum(resident.nbytes for resident in pinned):
        why = f"{nbytes} bytes do not fit: adapters.memory is {shelf.budget}, {len(pinned)} pinned adapters included"
        remedy = "raise it, or pin fewer"
    else:
        return None
    return ResourceError("adapters " + ", ".join(entry.name for entry in lease.entries), why, remedy)
