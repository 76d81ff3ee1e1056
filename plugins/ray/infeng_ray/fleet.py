"""The replicas that the gateway knows: asked for their state twice a second, and taken out at once when they fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from infeng_core.api import get_logger
from infeng_ray.router import Router
from infeng_ray.upstream import LostError, Pool

POLL_SECONDS = 0.5
"""Seconds between two looks at the replicas."""

ANSWER_SECONDS = 5.0
"""Seconds within which a replica must say how it is; a step of a large model takes less."""

STATE = "/replica"
"""Path of a replica's state."""

TOKEN_HEADER = b"x-infeng-replica"
"""Header with the secret that gateway and replicas share."""

_log = get_logger(__name__)

Members = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the URL of each replica by name."""


class State(msgspec.Struct):
    """What a replica says about itself."""

    ready: bool = False
    """Whether it takes calls: it has loaded its model, does not drain, and its steps end."""
    running: int = 0
    waiting: int = 0
    resident: list[str] = []
    """Adapters in memory, by the engine's names."""


@dataclass(slots=True)
class Replica:
    """A known replica."""

    name: str
    pool: Pool
    state: State
    is_open: bool = False
    """Whether the router may choose it."""


def state_request(authority: bytes, token: bytes) -> bytes:
    """Return the call that asks the replica at ``authority`` for its state."""
    return b"GET %b HTTP/1.1\r\nhost: %b\r\n%b: %b\r\n\r\n" % (STATE.encode("ascii"), authority, TOKEN_HEADER, token)


class Fleet:
    """The replicas behind one gateway. Must be used on the event loop's thread."""

    def __init__(
        self,
        members: Members,
        router: Router,
        token: str,
        *,
        welcome: Callable[[Replica], Awaitable[None]] | None = None,
    ) -> None:
        """members: asked twice a second. token: the secret of the replicas.

        welcome: prepares a replica that has become ready, before it gets calls; raises LostError.
        """
        self.router = router
        self.replicas: dict[str, Replica] = {}
        self._members = members
        self._token = token.encode("ascii")
        self.welcome = welcome
        self._changed = asyncio.Event()

    @property
    def open(self) -> list[Replica]:
        """The replicas that take calls."""
        return [replica for replica in self.replicas.values() if replica.is_open]

    async def watch(self) -> None:
        """Look at the replicas again and again."""
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except Exception as error:  # whoever names the members may be busy: the known ones go on
                if trouble != str(error):
                    trouble = str(error)
                    _log.warning("the replicas cannot be listed", reason=trouble.partition("\n")[0])
            await asyncio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Ask every replica for its state."""
        members = await self._members()
        for name, replica in list(self.replicas.items()):
            if members.get(name) != replica.pool.url:
                self.shut(replica, "it is gone")
                replica.pool.close()
                del self.replicas[name]
        for name, url in members.items():
            if name not in self.replicas:
                self.replicas[name] = Replica(name, Pool(url), State())
        await asyncio.gather(*(self._ask(replica) for replica in list(self.replicas.values())))

    async def changed(self, seconds: float) -> None:
        """Wait until a replica has become open, at most ``seconds``."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def shut(self, replica: Replica, reason: str) -> None:
        """Give a replica no more calls until it says that it is ready."""
        if replica.is_open:
            _log.warning("a replica gets no more calls", replica=replica.name, reason=reason)
        replica.is_open = False
        replica.state = State()
        self.router.remove(replica.name)

    async def _ask(self, replica: Replica) -> None:
        request = state_request(replica.pool.authority, self._token)
        try:
            head, body = await replica.pool.fetch(request, ANSWER_SECONDS)
            state = msgspec.json.decode(body, type=State) if head.status == 200 else State()
            if state.ready and not replica.is_open and self.welcome is not None:
                await self.welcome(replica)
        except (LostError, msgspec.MsgspecError) as error:
            self.shut(replica, str(error))
            return
        if self.replicas.get(replica.name) is not replica:
            return  # it has left meanwhile
        if not state.ready:
            self.shut(replica, "it is not ready")
            return
        replica.state = state
        self.router.add(replica.name)
        self.router.report(replica.name, state.resident)
        if not replica.is_open:
            _log.info("a replica gets calls", replica=replica.name, url=replica.pool.url)
            replica.is_open = True
            self._changed.set()
