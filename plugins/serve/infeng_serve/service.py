"""The server's state that routes use: settings, keys, observers and, once it is loaded, the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from infeng_core.api import get_logger
from infeng_core.api.servers import StartupTimes
from infeng_serve.auth import Caller, Keys
from infeng_serve.bridge import Bridge
from infeng_serve.failures import LoadingError
from infeng_serve.fingerprint import digest_of, fingerprint_of
from infeng_serve.http import Call, unzipped
from infeng_serve.idempotency import Idempotency
from infeng_serve.journal import Journal
from infeng_serve.limits import Limits
from infeng_serve.model import Model
from infeng_serve.observers import Observer
from infeng_serve.protocol.answer import Context, Read
from infeng_serve.protocol.errors import shutting_down
from infeng_serve.protocol.operation import Operation
from infeng_serve.protocol.unknown_parameters import Ignored
from infeng_serve.readers import Readers
from infeng_serve.settings import Settings

WAITERS = 64
"""Most concurrent embeddings and adapter loads; further ones wait."""

_log = get_logger(__name__)


class Service:
    """One server's state. Must be used on the event loop's thread."""

    def __init__(self, settings: Settings, keys: Keys, startup: StartupTimes | None = None) -> None:
        """Start without a model and without the journal's entries.

        Raises UsageError for a journal that cannot be used.
        """
        self.settings = settings
        self.keys = keys
        self.startup = startup or StartupTimes()
        """Durations of the phases of the start so far."""
        self.journal = Journal(
            Path(settings.journal) if settings.journal else None,
            keep=settings.journal_keep,
            most_bytes=settings.journal_bytes,
            most_line=2 * settings.max_body + (1 << 20),  # bodies are stored in base64
            syncs=settings.journal_sync,
        )
        self.idempotency = Idempotency(self.journal)
        self.observers: tuple[Observer, ...] = ()
        """The observers of calls, once the model is loaded."""
        self.readers = Readers(settings.threads)
        """Threads that read calls."""
        self.makers = Readers(max(1, settings.threads // 2), "infeng-make")
        """Threads that create logit processors and compile their grammars."""
        self.waiters = Readers(WAITERS, "infeng-wait")
        """Threads that wait for the engine or for files and do not compute."""
        self.limits = Limits(settings.max_requests, settings.max_requests_per_key)
        self.is_draining = False
        """Whether new calls are refused."""
        self.fingerprint = ""
        """``system_fingerprint`` of answers; "" until the model is loaded."""
        self.reads: Mapping[str, Read] = {}
        """Reads the calls of each path whose streams can be resumed."""
        self.operations: Sequence[Operation] = ()
        """Entries of plugins' routes in the OpenAPI document."""
        self._model: Model | None = None
        self._bridge: Bridge | None = None

    def begin(self, model: Model, observers: Sequence[Observer] = ()) -> None:
        """Serve a model; starts the engine's thread."""
        fingerprint = fingerprint_of(model, self.settings)
        self.fingerprint = f"fp_{digest_of(fingerprint)[:10]}"
        others = self.journal.begin(fingerprint)
        if others:
            _log.warning("calls of the journal would get other answers here and cannot be resumed", entries=others)
        self._bridge = Bridge(model.engine, self.readers, self.makers)
        self._model = model
        self.idempotency.engine = model.engine
        self.observers = tuple(observers)

    @property
    def is_loaded(self) -> bool:
        """Whether the model is loaded."""
        return self._model is not None

    @property
    def model(self) -> Model:
        """The model; raises LoadingError until it is loaded."""
        if self._model is None:
            raise LoadingError
        return self._model

    @property
    def bridge(self) -> Bridge:
        """The bridge to the engine; raises LoadingError until the model is loaded."""
        if self._bridge is None:
            raise LoadingError
        return self._bridge

    def check_open(self) -> None:
        """Raise LoadingError until the model is loaded, ApiError 503 while the server drains."""
        if self.is_draining:
            raise shutting_down()
        if self._model is None:
            raise LoadingError

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Count a call while it runs; raises ApiError before loading is done, while draining, and beyond the limits."""
        self.check_open()
        with self.limits.one_more(caller.tenant):
            yield

    async def body(self, call: Call, most: int | None = None) -> bytes:
        """Return a call's body of at most ``most`` bytes, decompressed; raises as ``Call.body`` and ``unzipped``."""
        most = self.settings.max_body if most is None else min(most, self.settings.max_body)
        body = await call.body(most, self.settings.body_timeout)
        if call.is_gzip:
            body = await self.readers.run(call.caller.tenant, lambda: unzipped(body, most))
        return body

    def context(self, id: str, own_id: str, caller: Caller) -> Context:
        """Return the protocol's context of a call."""
        context = self.model.asked(id, own_id, caller, self.settings.max_choices)
        return replace(context, ignored=self.ignored(), fingerprint=self.fingerprint)

    def ignored(self) -> Ignored:
        """Return a collector for a call's parameters that have no effect."""
        return Ignored(takes_all=self.settings.unknown_parameters == "ignore")
