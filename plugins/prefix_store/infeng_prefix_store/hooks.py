"""Hook of this plugin: the prefix store ``disk``."""

from __future__ import annotations

from pathlib import Path

from infeng_core.api import PrefixStoreFactory, hookimpl
from infeng_core.api.engines import PrefixStore


@hookimpl
def infeng_prefix_stores() -> dict[str, PrefixStoreFactory]:
    """Return the store's factory; it imports the store when an engine uses it."""

    def disk(directory: Path, identity: str, block_bytes: int, most_bytes: int) -> PrefixStore:
        from infeng_prefix_store.store import DiskStore

        return DiskStore(directory, identity=identity, block_bytes=block_bytes, most_bytes=most_bytes)

    return {"disk": disk}
