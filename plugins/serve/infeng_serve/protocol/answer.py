"""The interface of all generating routes: an answer has requests for the engine and renders its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from infeng_chat.template import ChatTemplate

from infeng_core.api import Adapters, Completion, Event, Request, Tokenizer
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.unknown_parameters import Ignored

EVENTS = b"text/event-stream; charset=utf-8"
"""Content type of server-sent events."""


@dataclass(frozen=True, slots=True)
class Context:
    """The properties of the server and of the call that the protocol uses."""

    id: str
    """The call's id, by the client or the server, in the response's id after ``cmpl-``, ``chatcmpl-`` or ``resp_``."""
    own_id: str
    """The server's unique id of the call, with which the ids of a stream's frames begin."""
    created: int
    """Unix time in seconds."""
    tenant: str
    """The key's tenant: the tenant of requests, and together with the client's salt their cache salt."""
    model: str
    """The served name of the base model."""
    adapter_of: Callable[[str], Adapters | None]
    """Returns the adapter that a ``model`` names, None for the base; raises ApiError 404 if the tenant has none."""
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, Any]
    """Default sampling parameters, by SamplingParams' names: the model's generation_config."""
    context: int
    """Most tokens of prompt and answer together."""
    most_choices: int = 16
    """Largest ``n``."""
    check: Callable[[], None] = lambda: None
    """Raises an exception if the client has left; called between pieces of long work."""
    check_room: Callable[[int], None] = lambda tokens: None
    """Raises OverloadedError if a prompt of so many tokens would not be admitted."""
    logit_processors: tuple[str, ...] = ()
    """Logit processors of plugins that a request may name."""
    fingerprint: str = ""
    """``system_fingerprint``, which differs between servers that may give other bytes; "": left out."""
    ignored: Ignored = field(default_factory=Ignored)
    """Collects the request's parameters that have no effect."""


def merged(events: Sequence[Event]) -> Event:
    """Return the events of several steps of one request as one event, without logits."""
    if len(events) == 1:  # nearly all
        return events[0]
    return Event(
        index=events[0].index if events else 0,
        text="".join([event.text for event in events]),
        token_ids=tuple([token for event in events for token in event.token_ids]),
        completion=events[-1].completion if events else None,
        logprobs=tuple([one for event in events for one in event.logprobs]),
    )


class Answer(Protocol):
    """One response in progress. It does no I/O; each call is cheap enough for the event loop.

    Each route's module has a function ``read(body: bytes, context: Context) -> Answer``. It tokenizes and renders
    templates, which may take long, so it runs on a pool thread; it raises ApiError.
    """

    requests: Sequence[Request]
    """The requests, one for each choice; they are submitted together."""
    streams: bool
    """Whether the answer is streamed."""
    numbered: bool
    """Whether frames carry ids, so that a broken stream can be resumed."""
    kind: bytes
    """Content type of a stream."""

    def resume(self, last_id: str) -> None:
        """Skip the frames up to the one with this id; raises ApiError for an id of another answer."""

    def opening(self) -> bytes:
        """Return the frames before the first event."""

    def frames(self, choice: int, events: Sequence[Event]) -> bytes:
        """Return the frames for a request's events, the last of which may hold its completion; may be empty."""

    def closing(self) -> bytes:
        """Return the frames after the end of all choices: the usage, if it was asked for, and the end marker."""

    def idle(self) -> bytes:
        """Return what keeps a silent stream open, in the middle of it or before its first frame; may be empty."""

    def failed(self, error: ApiError) -> bytes:
        """Return the frames that end a begun stream with an error."""

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""


Read = Callable[[bytes, Context], Answer]
"""The function ``read`` of a route's module."""
