"""The gateway: an ASGI application that passes each call to a replica, and each answer through as it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec
from infeng_serve.api.hosting import (
    NOBODY,
    ApiError,
    Call,
    GoneError,
    Hosts,
    Keys,
    Limits,
    Receive,
    Scope,
    Send,
    Settings,
    failure,
    inner_name,
    unauthenticated,
    unavailable,
    unzipped,
)

from infeng_ray import counts
from infeng_ray.affinity import asked
from infeng_ray.fleet import Fleet, Replica
from infeng_ray.forwarding import ATTEMPTS, Answering, Attempt, Forward, passed_on
from infeng_ray.loads import LOAD, PATHS, UNLOAD, Change, Loads
from infeng_ray.relay import Relay, failed, lost
from infeng_ray.router import key_of
from infeng_ray.upstream import LostError

STREAMS = "/v1/streams/"
"""Path of calls that a journal keeps."""

RESUME_SECONDS = 120.0
"""Seconds for which a broken stream waits for a replica that has its journal: as long as one takes to start again."""

ROOM_SECONDS = 1.0
"""Retry-After while no replica is ready, in seconds."""

MOST_PLACES = 100_000
"""Most calls whose replica is remembered, for their streams and idempotency keys."""


class Gateway:
    """The ASGI application. Must be used on the event loop's thread."""

    def __init__(
        self, settings: Settings, keys: Keys, hosts: Hosts, fleet: Fleet, loads: Loads, base: Collection[str], *,
        has_journal: bool,
    ) -> None:  # fmt: skip
        """base: names of the base model; every other model is an adapter. has_journal: whether replicas keep calls."""
        self._settings, self._keys, self._hosts = settings, keys, hosts
        self._fleet, self._loads, self._base = fleet, loads, frozenset({*base, "base", ""})
        self._has_journal = has_journal
        self._limits = Limits(settings.max_requests, settings.max_requests_per_key)
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()  # replica by tenant and id of a call
        self._changing = asyncio.Lock()
        self.counts = counts.Counts()
        self.is_draining = False

    @property
    def calls(self) -> int:
        """Calls that are being answered."""
        return self._limits.calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP call; the ASGI entry point."""
        if scope["type"] != "http":
            return
        call = Call(scope, receive, send)
        try:
            await self._answer(call)
        except GoneError:
            pass
        except Exception as error:
            if call.is_started:
                raise  # the head is sent already: uvicorn closes the connection
            await call.fail(failure(error, call.id))
        finally:
            call.close()

    async def _answer(self, call: Call) -> None:
        self._hosts.check(call.headers.get(b"host"))
        if call.path in ("/health", "/ready") and call.method in ("GET", "HEAD"):
            await self._tell(call)
            return
        caller = self._keys.caller(call.headers.get(b"authorization"))
        if caller is None and (call.method not in ("GET", "HEAD", "OPTIONS") or call.path in ("/metrics", "/replicas")):
            raise unauthenticated(b"authorization" in call.headers)
        call.caller = caller or NOBODY
        if call.path in ("/metrics", "/replicas") and call.method in ("GET", "HEAD"):
            await self._show(call)
            return
        if self.is_draining:
            raise unavailable("The server is shutting down.", 5.0, code="shutting_down")
        with self._limits.one_more(call.caller.tenant):
            if call.path in PATHS and call.method == "POST":
                await self._change(call)
            else:
                await self._forward(call)

    # ----------------------------------------------------------------------------------------- its own routes ---

    async def _tell(self, call: Call) -> None:
        """Answer liveness and readiness."""
        if call.path == "/ready" and (self.is_draining or not self._fleet.open):
            raise unavailable("No replica is ready.", ROOM_SECONDS, code="no_replica")
        await call.respond(200, b'{"status":"ok"}' if call.path == "/health" else b'{"status":"ready"}')

    async def _show(self, call: Call) -> None:
        """Answer the replicas and their loads, for those who may read metrics."""
        if not call.caller.may_watch:
            raise ApiError(403, "This key may not see the replicas.", type="permission_error")
        loads = self._fleet.router.loads
        if call.path == "/metrics":
            await call.respond(200, self.counts.text(self._fleet, loads), kind=counts.KIND)
            return
        shown = [
            {
                "name": replica.name,
                "url": replica.pool.url,
                "ready": replica.is_open,
                "calls": loads.get(replica.name, 0),
                "running": replica.state.running,
                "waiting": replica.state.waiting,
                "resident": len(replica.state.resident),
            }
            for replica in self._fleet.replicas.values()
        ]
        await call.respond(200, msgspec.json.encode({"replicas": shown}))

    # ------------------------------------------------------------------------------------------- one replica's ---

    async def _body(self, call: Call) -> bytes:
        """Return a call's body, decompressed; b"" of a call without one. Raises ApiError."""
        if call.method in ("GET", "HEAD", "OPTIONS"):
            return b""
        most = self._settings.max_body
        body = await call.body(most, self._settings.body_timeout)
        return await asyncio.to_thread(unzipped, body, most) if call.is_gzip else body

    async def _forward(self, call: Call) -> None:
        """Pass a call to the replica that the router chooses, or to the next one if it is lost or has no room."""
        body = await self._body(call)
        attempt = Attempt(self._fleet)
        call.watch(attempt.leave)
        try:
            answering = await self._first(call, attempt, Forward.of(call, body), body)
            try:
                await self._pass_on(call, attempt, answering, Forward.of(call, body), body)
            finally:
                answering.close()
        except LostError as error:
            if attempt.is_gone or call.is_started:
                raise GoneError from error
            raise lost() from error

    async def _first(
        self, call: Call, attempt: Attempt, forward: Forward, body: bytes, tried: Sequence[str] = ()
    ) -> Answering:
        """Return the first answer that is no refusal, or the last refusal; raises LostError, or ApiError."""
        tried = list(tried)
        answering: Answering | None = None
        error: LostError | None = None
        for _ in range(ATTEMPTS):
            replica = self._chosen(call, body, tried)
            if replica is None:
                break
            tried.append(replica.name)
            if answering is not None:
                answering.close()
                self.counts.retries += 1
            try:
                answering = await attempt.ask(replica, forward)
            except LostError as found:
                if attempt.is_gone:
                    raise
                self.counts.lost += 1
                answering, error = None, found
                continue
            if not (answering.is_refusal or self._is_elsewhere(call, answering)):
                self._remember(call, answering)
                return answering
        if answering is not None:
            return answering
        if error is not None:
            raise error
        raise unavailable("No replica is ready.", ROOM_SECONDS, code="no_replica")

    def _chosen(self, call: Call, body: bytes, tried: Sequence[str]) -> Replica | None:
        """Return the replica for a call, None if all were tried."""
        tenant, router = call.caller.tenant, self._fleet.router
        known = self._places.get((tenant, self._id(call)))
        if known is not None and known not in tried and known in self._fleet.replicas:
            return self._fleet.replicas[known]
        given = asked(body)
        model = "" if given.name in self._base else given.name
        names = (model, inner_name(model, tenant)) if model else ()
        name = router.choose(key_of(tenant, model, given.beginning), names, tried)
        return None if name is None else self._fleet.replicas.get(name)

    def _id(self, call: Call) -> str:
        """Return what must come to the replica that has seen it before: the stream's call, or an idempotency key."""
        if call.path.startswith(STREAMS):
            return call.path.removeprefix(STREAMS)[:128]
        return "key " + call.header(b"idempotency-key")[:256] if b"idempotency-key" in call.headers else ""

    def _is_elsewhere(self, call: Call, answering: Answering) -> bool:
        """Whether another replica may have the stream that is asked for."""
        return call.path.startswith(STREAMS) and answering.head.status == 404

    def _remember(self, call: Call, answering: Answering) -> None:
        """Remember where a call is answered, if it may be asked for again."""
        ids = [self._id(call)]
        if self._has_journal:
            ids.append(answering.head.get(b"x-request-id").decode("latin-1")[:128])
        for id in filter(None, ids):
            self._places[call.caller.tenant, id] = answering.replica.name
            self._places.move_to_end((call.caller.tenant, id))
        while len(self._places) > MOST_PLACES:
            self._places.popitem(last=False)

    async def _pass_on(self, call: Call, attempt: Attempt, answering: Answering, forward: Forward, body: bytes) -> None:
        """Send a replica's answer; a stream that breaks off goes on with another replica, or ends with an error."""
        await self._begin(call, answering)
        if call.method == "HEAD":  # its answer announces a body and has none
            await call.write(b"", is_last=True)
            return
        if not answering.is_stream:
            while data := await answering.upstream.take():
                await call.write(data)
            await call.write(b"", is_last=True)
            return
        relay = Relay(call)
        current: Answering | None = answering
        try:
            while current is not None:
                try:
                    await relay.run(current.upstream)
                    await call.write(b"", is_last=True)
                    return
                except LostError as error:
                    if attempt.is_gone:
                        raise
                    self.counts.lost += 1
                    self._fleet.shut(current.replica, f"it was lost within an answer: {error}")
                    current.close()
                    current = await self._again(call, attempt, relay, forward, body, current.replica.name)
            await call.write(failed(call.path, lost()), is_last=True)
        finally:
            if current is not None:
                current.close()

    @staticmethod
    async def _begin(call: Call, answering: Answering) -> None:
        headers = passed_on(answering.head)
        headers += [(name, value) for name, value in call.extra if name != b"x-request-id"]
        await call.start(answering.head.status, headers)

    async def _again(
        self, call: Call, attempt: Attempt, relay: Relay, forward: Forward, body: bytes, was: str
    ) -> Answering | None:
        """Return the answer with which a broken stream goes on; None if none does."""
        with contextlib.suppress(ApiError, LostError):
            if not relay.has_sent:  # the client has nothing of it yet
                again = await self._first(call, attempt, forward, body, (was,))
                if again.is_stream and again.head.status == 200:
                    return again
                again.close()
                return None
        if not (self._has_journal and relay.last_id):
            return None
        return await self._resumed(attempt, forward, relay.last_id)

    async def _resumed(self, attempt: Attempt, forward: Forward, last: str) -> Answering | None:
        """Return the rest of a stream after the frame with the id ``last`` from the replica that has its journal.

        That is the one that takes the lost one's place, so this waits for it. None if the time is over, or if its
        answer would have other bytes.
        """
        target = (STREAMS + last.partition("/")[0]).encode("latin-1")
        resuming = forward.with_headers([(b"last-event-id", last.encode("latin-1"))], target)
        loop = asyncio.get_running_loop()
        end = loop.time() + RESUME_SECONDS
        while loop.time() < end and not attempt.is_gone:
            for replica in self._fleet.open:
                with contextlib.suppress(LostError):
                    answering = await attempt.ask(replica, resuming)
                    if answering.head.status == 200 and answering.is_stream:
                        self.counts.resumed += 1
                        return answering
                    answering.close()
                    if answering.head.status not in (404, 503):
                        return None
            await self._fleet.changed(min(5.0, max(0.0, end - loop.time())))
        return None

    # ------------------------------------------------------------------------------------------ every replica's ---

    async def _change(self, call: Call) -> None:
        """Make a call that changes adapters on all replicas: on all of them or, as far as possible, on none."""
        body = await self._body(call)
        forward = Forward.of(call, body)
        given = asked(body)
        name = given.lora_name if isinstance(given.lora_name, str) else ""
        async with self._changing:
            replicas = self._fleet.open
            if not replicas:
                raise unavailable("No replica is ready.", ROOM_SECONDS, code="no_replica")
            if self._loads.is_full and call.path == LOAD:
                raise ApiError(400, "The gateway remembers no further adapter; unload one.", param="lora_name")
            answers = await asyncio.gather(*(self._made(replica, forward) for replica in replicas))
            wrong = next((answer for answer in answers if answer.status != 200), None)
            if wrong is None:
                change = Change(call.path, body, call.headers.get(b"authorization", b""))
                self._loads.note(call.caller.tenant, name, change)
            elif call.path == LOAD:
                undo = Forward(
                    "POST", UNLOAD.encode("ascii"), forward.headers, msgspec.json.encode({"lora_name": name})
                )
                done = [replica for replica, answer in zip(replicas, answers, strict=True) if answer.status == 200]
                await asyncio.gather(*(self._made(replica, undo) for replica in done))
            told = wrong or answers[0]
            await call.respond(told.status, told.body, kind=told.kind)

    async def _made(self, replica: Replica, forward: Forward) -> _Made:
        """Return one replica's answer; a lost replica's is 502."""
        try:
            request = forward.bytes_for(replica.pool.authority)
            head, body = await replica.pool.fetch(request, self._settings.body_timeout)
            return _Made(head.status, body, head.get(b"content-type"))
        except LostError as error:
            self._fleet.shut(replica, str(error))
            return _Made(502, lost().body(), b"application/json")

    async def welcome(self, replica: Replica) -> None:
        """Bring a new replica to the adapters that clients have loaded; raises LostError."""
        async with self._changing:
            for change in self._loads:
                headers = [(b"content-type", b"application/json")]
                headers += [(b"authorization", change.authorization)] if change.authorization else []
                forward = Forward("POST", change.path.encode("ascii"), headers, change.body)
                request = forward.bytes_for(replica.pool.authority)
                await replica.pool.fetch(request, self._settings.body_timeout)


class _Made(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    kind: bytes
