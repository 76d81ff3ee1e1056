"""The blocking client."""
# Generated from aio.py by make_sync.py: change that file and run it again.
# fmt: off
# ruff: noqa: I001 - names and imports stand in the order of the source

from __future__ import annotations

from collections.abc import Generator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import httpx

from infeng_client import calls
from infeng_client.exchange import Exchange
from infeng_client.many import in_order
from infeng_client.stream import Stream
from infeng_client.calls import Call, Messages, Prompt
from infeng_client.errors import ApiError
from infeng_client.results import (
    Completion,
    Embeddings,
    Health,
    Model,
    read_completion,
    read_embeddings,
    read_models,
    read_text,
    read_tokens,
)
from infeng_client.retries import STANDARD, Retries
from infeng_client.sending import Came, Steps, Terms, answered, asked_once
from infeng_client.streaming import Streaming
from infeng_client.transport import DEFAULT, LIMITS, read, read_health

T = TypeVar("T")


class Client:
    """A client of one server. Threads may share it; ``close`` it, or use it with ``with``.

    ``params`` of a call are fields of the request body: ``model``, ``max_tokens``, ``temperature``, ``stop``,
    ``tools``, ``response_format`` and so on. A ``timeout`` given to a call replaces the client's. Calls raise ApiError
    or one of its subclasses.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout: float | None = 600.0,
        retries: Retries | int = STANDARD,
        http: httpx.Client | None = None,
    ) -> None:
        """base_url: with or without ``/v1``. timeout: seconds of a call, retries included; None: no limit.

        retries: their number, or a schedule. http: used for all requests and left open; created here by default.
        """
        self.base_url = calls.base_of(base_url)
        self.timeout = timeout
        self.retries = Retries(retries) if isinstance(retries, int) else retries
        self._api_key = api_key
        self._http = httpx.Client(limits=LIMITS) if http is None else http
        self._owned = http is None

    def close(self) -> None:
        """Close the connections, unless they are the caller's."""
        if self._owned:
            self._http.close()

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def complete(self, prompt: Prompt, *, timeout: float | None = DEFAULT, **params: Any) -> Completion:
        """Complete a prompt, a text or token ids."""
        return self._ask(calls.completion(prompt, params), read_completion, timeout)

    def chat(self, messages: Messages, *, timeout: float | None = DEFAULT, **params: Any) -> Completion:
        """Answer messages, or a text as one message."""
        return self._ask(calls.chat(messages, params), read_completion, timeout)

    def stream(self, prompt: Prompt, *, timeout: float | None = DEFAULT, **params: Any) -> Stream:
        """Stream the completion of a prompt; the request is sent on ``with`` or with the first chunk."""
        return self._stream(calls.completion(prompt, params), timeout)

    def stream_chat(self, messages: Messages, *, timeout: float | None = DEFAULT, **params: Any) -> Stream:
        """Stream the answer to messages."""
        return self._stream(calls.chat(messages, params), timeout)

    def complete_many(
        self, prompts: Iterable[Prompt], concurrency: int = 16, *, timeout: float | None = DEFAULT, **params: Any
    ) -> Generator[Completion | ApiError, None, None]:
        """Yield the completion of each prompt in order, or the error of its call.

        At most ``concurrency`` calls run at once; prompts are read as needed, a few times ``concurrency`` ahead.
        Leaving the loop early, or Ctrl-C, cancels running calls at the server too.
        """
        return in_order((self._stream(calls.completion(each, params), timeout) for each in prompts), concurrency)

    def chat_many(
        self, chats: Iterable[Messages], concurrency: int = 16, *, timeout: float | None = DEFAULT, **params: Any
    ) -> Generator[Completion | ApiError, None, None]:
        """Yield the answer to each chat, like ``complete_many``."""
        return in_order((self._stream(calls.chat(each, params), timeout) for each in chats), concurrency)

    def models(self, *, timeout: float | None = DEFAULT) -> list[Model]:
        """Return the models that the server offers, including adapters."""
        return self._ask(calls.get("/v1/models"), read_models, timeout)

    def load_adapter(
        self, name: str, path: str, *, replace: bool = False, timeout: float | None = DEFAULT
    ) -> None:
        """Load an adapter under a name. path: on the server's file system, or a hub name.

        replace: reload the files if the name is loaded already.
        """
        self._drive(answered(calls.load_adapter(name, path, replace=replace), self._terms(timeout)))

    def unload_adapter(self, name: str, *, timeout: float | None = DEFAULT) -> None:
        """Unload an adapter; calls that already use it are still answered."""
        self._drive(answered(calls.unload_adapter(name), self._terms(timeout)))

    def tokenize(self, text: str, *, timeout: float | None = DEFAULT, **params: Any) -> list[int]:
        """Return the token ids of a text."""
        return self._ask(calls.tokenize(text, params), read_tokens, timeout)

    def detokenize(self, ids: Iterable[int], *, timeout: float | None = DEFAULT, **params: Any) -> str:
        """Return the text of token ids."""
        return self._ask(calls.detokenize(ids, params), read_text, timeout)

    def embed(self, inputs: str | Sequence[str], *, timeout: float | None = DEFAULT, **params: Any) -> Embeddings:
        """Return a vector for each text."""
        return self._ask(calls.embed(inputs, params), read_embeddings, timeout)

    def health(self, *, timeout: float | None = 10.0) -> Health:
        """Return whether the server is healthy, without retries; raises ApiError only if it cannot be reached."""
        return read_health(self._drive(asked_once(calls.get("/health"), self._terms(timeout))))

    def _terms(self, timeout: float | None) -> Terms:
        return Terms(self.retries, self.timeout if timeout is DEFAULT else timeout)

    def _ask(self, call: Call, reader: Callable[[Mapping[str, Any]], T], timeout: float | None) -> T:
        return read(self._drive(answered(call, self._terms(timeout))), reader)

    def _stream(self, call: Call, timeout: float | None) -> Stream:
        return Stream(self._exchange(), Streaming(call, partial(self._terms, timeout)))

    def _exchange(self) -> Exchange:
        return Exchange(self._http, self.base_url, self._api_key)

    def _drive(self, steps: Steps[T]) -> T:
        """Perform the steps of a call that is not streamed."""
        exchange = self._exchange()
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                value: T = end.value
                return value
            came = exchange.perform(step)
