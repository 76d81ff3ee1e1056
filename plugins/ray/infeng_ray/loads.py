"""Adapters that clients load at run time: on all replicas, and on those that come later."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

LOAD, UNLOAD, MERGE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"
PATHS = (LOAD, UNLOAD, MERGE)
"""Paths whose calls go to all replicas."""

MOST = 10_000
"""Most adapters that are remembered; the servers' own limit, 1024 for each tenant, is usually lower."""


class Change(msgspec.Struct, frozen=True):
    """A call that was made on all replicas."""

    path: str
    body: bytes
    authorization: bytes
    """The caller's header, which is repeated so that each replica sees the same tenant."""


class Loads:
    """The calls that bring a new replica to the adapters of the others, in their order."""

    def __init__(self) -> None:
        """Start with none."""
        self._changes: dict[tuple[str, str, str], Change] = {}

    def __iter__(self) -> Iterator[Change]:
        return iter(list(self._changes.values()))

    @property
    def is_full(self) -> bool:
        """Whether no further adapter can be remembered."""
        return len(self._changes) >= MOST

    def note(self, tenant: str, name: str, change: Change) -> None:
        """Note a call that all replicas have answered with success. name: of the adapter, "" if it is of none."""
        if change.path == UNLOAD:
            self._changes.pop((tenant, LOAD, name), None)
        else:
            place = (tenant, change.path, name)
            self._changes.pop(place, None)
            self._changes[place] = change
