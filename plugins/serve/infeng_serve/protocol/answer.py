"""What every generating route has in common: requests for the engine, and how its events become the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from infeng_chat.template import ChatTemplate

from infeng_core.api import Adapters, Completion, Event, Request, Tokenizer
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.unknown import Ignored


@dataclass(frozen=True, slots=True)
class Context:
    """What the protocol knows of the server and of the call."""

    id: str
    """Of this call: names the response (``cmpl-``, ``chatcmpl-``, ``resp_`` go before it). A client may give it."""
    own_id: str
    """Of this call, which no other has: the ids of a stream's frames begin with it."""
    created: int
    """Seconds since 1970."""
    tenant: str
    """Whose key it came with; goes into requests as tenant and, with the client's own, into their cache salt."""
    model: str
    """The name that the base model is served by."""
    adapter_of: Callable[[str], Adapters | None]
    """The adapter that a ``model`` names, None for the base; raises ApiError 404 for none that this tenant sees."""
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, Any]
    """Sampling parameters that a request does not give, by SamplingParams' names: the model's generation_config."""
    context: int
    """Tokens that prompt and answer may have together."""
    most_choices: int = 16
    """Largest ``n``."""
    check: Callable[[], None] = lambda: None
    """Ends the reading of a call whose client has left, by an exception; to be called between pieces of work."""
    check_room: Callable[[int], None] = lambda tokens: None
    """Raises OverloadedError where a prompt of so many tokens would not be let in."""
    logit_processors: tuple[str, ...] = ()
    """Those of plugins that a request may name."""
    fingerprint: str = ""
    """Tells servers apart that could give other bytes; "" says nothing."""
    ignored: Ignored = field(default_factory=Ignored)
    """Gets what a request asks for without effect."""


def merged(events: Sequence[Event]) -> Event:
    """Return what several steps gave to one request as if one step had; without logits."""
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
    """One response in the making. It does no I/O; each call is cheap enough for the event loop.

    Made from a body by a function ``read(body: bytes, context: Context) -> Answer`` of each route's module, which may
    take long (it tokenizes and renders), runs on a thread of its own and raises ApiError.
    """

    requests: Sequence[Request]
    """One for each choice; they are submitted together."""
    streams: bool
    """Whether the client wants frames as they come."""
    numbered: bool
    """Whether frames carry ids, so that a stream which breaks can go on."""

    def resume(self, last_id: str) -> None:
        """Render nothing that a client has whose last frame had this id; raises ApiError for one of another answer."""

    def opening(self) -> bytes:
        """Return the frames that come before any event."""

    def frames(self, choice: int, events: Sequence[Event]) -> bytes:
        """Return the frames of what one request gave, its completion included; may be empty."""

    def closing(self) -> bytes:
        """Return the frames after all choices have ended: usage where it was asked for, and the end mark."""

    def failed(self, error: ApiError) -> bytes:
        """Return the frames that end a stream which has begun."""

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response, where nothing was streamed."""
