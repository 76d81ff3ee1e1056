"""Running calls by the clients' ids, for Abort."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from infeng_serve.auth import Caller
from infeng_serve.event_queue import EventQueue
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc.call import Rpc


class Running:
    """The running calls. Must be used on the event loop's thread."""

    def __init__(self) -> None:
        """Have none."""
        self._queues: defaultdict[tuple[str, str], set[EventQueue]] = defaultdict(set)

    @contextlib.contextmanager
    def one(self, call: Rpc, id: str, queue: EventQueue) -> Iterator[None]:
        """Register a call while it is answered; a call without ``id`` cannot be aborted."""
        key = (call.caller.tenant, id)
        if id:
            self._queues[key].add(queue)
        try:
            yield
        finally:
            if id:
                self._queues[key].discard(queue)
                if not self._queues[key]:
                    del self._queues[key]

    def abort(self, caller: Caller, ids: Iterable[str]) -> None:
        """Cancel a tenant's calls: a running one ends with its tokens so far, one not submitted yet with an error."""
        for id in ids:
            for queue in self._queues.get((caller.tenant, id), ()):
                streams = [choice.stream for choice in queue.choices]
                if streams and all(stream is not None for stream in streams):
                    for stream in streams:
                        if stream is not None:
                            stream.cancel()
                else:
                    queue.leave()
                    queue.abort(ApiError(499, "The call was aborted."))
