"""What routes work with: the settings, the keys, the observers, and once it is loaded, the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from infeng_core.api import StartupTimes, get_logger
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
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import shutting_down
from infeng_serve.protocol.unknown import Ignored
from infeng_serve.readers import Readers
from infeng_serve.settings import Settings

WAITERS = 64
"""Embeddings, and adapters that come or go, at a time; further ones wait."""

_log = get_logger(__name__)


class Service:
    """One server's state, for the event loop's thread."""

    def __init__(self, settings: Settings, keys: Keys, startup: StartupTimes | None = None) -> None:
        """Be without a model, and without what the journal holds, yet.

        Raises UsageError for a journal that cannot be used.
        """
        self.settings = settings
        self.keys = keys
        self.startup = startup or StartupTimes()
        """What the start has taken so far."""
        self.journal = Journal(
            Path(settings.journal) if settings.journal else None,
            keep=settings.journal_keep,
            most_bytes=settings.journal_bytes,
            most_line=2 * settings.max_body + (1 << 20),  # a body is written in base64
            syncs=settings.journal_sync,
        )
        self.idempotency = Idempotency(self.journal)
        self.observers: tuple[Observer, ...] = ()
        """Who is told of each call, once there is a model."""
        self.readers = Readers(settings.threads)
        """Threads that read calls."""
        self.makers = Readers(max(1, settings.threads // 2), "infeng-make")
        """Threads that make logit processors, and compile grammars for them."""
        self.waiters = Readers(WAITERS, "infeng-wait")
        """Threads that wait for the engine or for files, and compute nothing."""
        self.limits = Limits(settings.max_requests, settings.max_requests_per_key)
        self.is_draining = False
        """Whether no further calls are taken."""
        self.fingerprint = ""
        """Of what the bytes of answers depend on beside calls, seeds and adapters; "" while there is no model."""
        self._model: Model | None = None
        self._bridge: Bridge | None = None

    def begin(self, model: Model, observers: Sequence[Observer] = ()) -> None:
        """Serve a model; starts the engine's thread."""
        fingerprint = fingerprint_of(model, self.settings)
        self.fingerprint = f"fp_{digest_of(fingerprint)[:10]}"
        others = self.journal.begin(fingerprint)
        if others:
            _log.warning("calls of the journal would get other answers here, and are refused", entries=others)
        self._bridge = Bridge(model.engine, self.readers, self.makers)
        self._model = model
        self.idempotency.engine = model.engine
        self.observers = tuple(observers)

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model."""
        return self._model is not None

    @property
    def model(self) -> Model:
        """The model; raises LoadingError while there is none."""
        if self._model is None:
            raise LoadingError
        return self._model

    @property
    def bridge(self) -> Bridge:
        """The way to the engine; raises LoadingError while there is none."""
        if self._bridge is None:
            raise LoadingError
        return self._bridge

    def check_open(self) -> None:
        """Raise LoadingError before the model is there, ApiError 503 where no more calls are taken."""
        if self.is_draining:
            raise shutting_down()
        if self._model is None:
            raise LoadingError

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Count a call that takes work; raises ApiError where it is not taken: too early, too late, or one too many."""
        self.check_open()
        with self.limits.one_more(caller.tenant):
            yield

    async def body(self, call: Call, most: int | None = None) -> bytes:
        """Return a call's body, of ``most`` bytes; raises what ``Call.body`` raises, and ApiError for a broken gzip."""
        most = self.settings.max_body if most is None else min(most, self.settings.max_body)
        body = await call.body(most, self.settings.body_timeout)
        if call.is_gzip:
            body = await self.readers.run(call.caller.tenant, lambda: unzipped(body, most))
        return body

    def context(self, id: str, own_id: str, caller: Caller) -> Context:
        """Return what the protocol knows of a call."""
        context = self.model.asked(id, own_id, caller, self.settings.max_choices)
        return replace(context, ignored=self.ignored(), fingerprint=self.fingerprint)

    def ignored(self) -> Ignored:
        """Return what gets the parameters of a call that have no effect."""
        return Ignored(takes_all=self.settings.unknown_parameters == "ignore")
