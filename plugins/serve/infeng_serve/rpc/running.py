"""The calls that are being answered, by the ids that clients give them, so that they can be aborted."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from infeng_serve.auth import Caller
from infeng_serve.feed import Feed
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc.call import Rpc


class Running:
    """For the event loop's thread."""

    def __init__(self) -> None:
        """Have none."""
        self._feeds: defaultdict[tuple[str, str], set[Feed]] = defaultdict(set)

    @contextlib.contextmanager
    def one(self, call: Rpc, id: str, feed: Feed) -> Iterator[None]:
        """Have a call while it is answered; one without an ``id`` cannot be aborted."""
        key = (call.caller.tenant, id)
        if id:
            self._feeds[key].add(feed)
        try:
            yield
        finally:
            if id:
                self._feeds[key].discard(feed)
                if not self._feeds[key]:
                    del self._feeds[key]

    def abort(self, caller: Caller, ids: Iterable[str]) -> None:
        """Cancel a tenant's calls: those that run end with what they have, those not submitted yet with an error."""
        for id in ids:
            for feed in self._feeds.get((caller.tenant, id), ()):
                streams = [choice.stream for choice in feed.choices]
                if streams and all(stream is not None for stream in streams):
                    for stream in streams:
                        if stream is not None:
                            stream.cancel()
                else:
                    feed.leave()
                    feed.abort(ApiError(499, "The call was aborted."))
