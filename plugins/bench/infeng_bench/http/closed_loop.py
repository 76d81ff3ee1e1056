"""A closed loop over HTTP: a fixed number of requests in flight, each ended answer starts the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from infeng_bench.http.client import Client, Due, Effort, Reply
from infeng_bench.http.wire import Address, Wire
from infeng_bench.load.serving import Job, Trace
from infeng_bench.peers import PeerError

KEPT = 1 << 15  # bytes of an answer's end in which the last frame lies; llama.cpp's repeats the prompt


def drive(
    name: str, address: Address, wire: Wire, jobs: Sequence[Job], clients: int, timeout: float
) -> tuple[list[Trace], Effort]:
    """Send ``jobs``, at most ``clients`` at a time; return the traces, with the times of text, and the effort.

    timeout: seconds without a byte. name: for errors. Raises PeerError if an answer is not a stream or lacks tokens.
    """
    dues = deque(Due(0.0, address.request(wire, job), place) for place, job in enumerate(jobs))
    first = [dues.popleft() for _ in range(min(clients, len(jobs)))]

    def following(reply: Reply) -> Due | None:
        _check(name, reply, wire, jobs[reply.due.place])
        return dues.popleft() if dues else None

    with Client(name, address, timeout, mark=wire.mark, kept=KEPT) as client:
        client.connect(len(first))
        replies, effort = client.run(first, following)
    replies.sort(key=lambda reply: reply.due.place)
    return [Trace(jobs[reply.due.place], reply.sent, reply.pieces) for reply in replies], effort


def _check(name: str, reply: Reply, wire: Wire, job: Job) -> None:
    """Raise PeerError unless a reply is a whole stream of as many tokens as the job asks for."""
    said = wire.count.findall(reply.tail)
    if reply.status not in (0, 200):
        why = f"answered {reply.status}: {reply.tail.decode(errors='replace')!r}"
    elif not reply.is_whole:
        why = "an answer was cut short"
    elif not said or int(said[-1]) != job.new or not reply.frames:
        why = f"gave {said[-1].decode() if said else 'no'} tokens where {job.new} were asked for"
    else:
        return
    raise PeerError(name, why, "look at its log")
