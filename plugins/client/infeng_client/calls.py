"""Requests to a server as plain data: a method, a path, headers and a body."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

Prompt = str | Sequence[int]
"""A text, or token ids."""
Messages = str | Sequence[Mapping[str, Any]]
"""Messages in OpenAI's form; a text stands for one user message."""

POSITION = re.compile(r"(.+?)/[0-9][0-9.-]*(?:/[0-9]+){0,2}", re.DOTALL)
"""The id of an event: the call's id, which may have slashes, the position of each choice, and further counters."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, which is the same in every attempt."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes | None:
        """Return the body as JSON."""
        return None if self.body is None else json.dumps(self.body, ensure_ascii=False).encode("utf-8", "replace")


def get(path: str) -> Call:
    """Return a read-only call."""
    return Call("GET", path)


def post(path: str, body: Mapping[str, Any]) -> Call:
    """Return a call with a new Idempotency-Key, by which the server recognizes a repetition."""
    headers = {"content-type": "application/json", "idempotency-key": str(uuid.uuid4())}
    return Call("POST", path, body, headers)


def completion(prompt: Prompt, params: Mapping[str, Any]) -> Call:
    """Return a call that completes a prompt."""
    return post("/v1/completions", {"prompt": prompt if isinstance(prompt, str) else list(prompt), **params})


def chat(messages: Messages, params: Mapping[str, Any]) -> Call:
    """Return a call that answers messages."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return post("/v1/chat/completions", {"messages": list(messages), **params})


def streamed(call: Call) -> Call:
    """Return the same call, answered as a stream that ends with its usage."""
    return replace(call, body={"stream_options": {"include_usage": True}, **(call.body or {}), "stream": True})


def resumed(last: str) -> Call:
    """Return the call that resumes a stream after the event with id ``<call id>/<position of each choice>``."""
    found = POSITION.fullmatch(last)
    name = found[1] if found else last
    return Call("GET", f"/v1/streams/{quote(name, safe='')}", headers={"last-event-id": last})


def load_adapter(name: str, path: str, *, replace: bool = False) -> Call:
    """Return a call that loads an adapter. path: on the server's file system, or a hub name.

    replace: reload the files if the name is loaded already.
    """
    again = {"load_inplace": True} if replace else {}
    return post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **again})


def unload_adapter(name: str) -> Call:
    """Return a call that unloads an adapter."""
    return post("/v1/unload_lora_adapter", {"lora_name": name})


def tokenize(text: str, params: Mapping[str, Any]) -> Call:
    """Return a call for the ids of a text."""
    return post("/tokenize", {"prompt": text, **params})


def detokenize(ids: Iterable[int], params: Mapping[str, Any]) -> Call:
    """Return a call for the text of ids."""
    return post("/detokenize", {"tokens": list(ids), **params})


def embed(inputs: str | Sequence[str], params: Mapping[str, Any]) -> Call:
    """Return a call for a vector of each text."""
    texts = inputs if isinstance(inputs, str) else list(inputs)
    return post("/v1/embeddings", {"input": texts, "encoding_format": "float", **params})


def base_of(url: str) -> str:
    """Return a server's address without a trailing ``/v1``; raises ValueError for one that is not an HTTP address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an address of a server: write it as http://localhost:8000")
    return url.rstrip("/").removesuffix("/v1")
