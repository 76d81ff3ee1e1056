"""Streams of the server as bytes: their frames with ids, what choices say in them, and the rest of one that broke."""

from __future__ import annotations

import json
from typing import Any

import httpx
from serve_parts import Running, slowed

STORY = {
    "model": "bard",
    "prompt": "The king",
    "max_tokens": 48,
    "temperature": 0.9,
    "stream": True,
    "n": 2,
    "ignore_eos": True,
}
"""A body of /v1/completions with two choices."""

DONE = b"data: [DONE]"


def story(served: Running, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """Return the answer to STORY, whose steps are slow, so that it has many frames on a busy machine too."""
    with slowed(served.engine, 0.01):
        return httpx.post(f"{served.url}/v1/completions", json={**STORY, **more}, headers=headers, timeout=60)


def frames(data: bytes) -> list[tuple[str, bytes]]:
    """Return (id, frame) of a stream's frames."""
    found = []
    for frame in data.split(b"\n\n")[:-1]:
        head = frame.split(b"\n")[0]
        found.append((head.removeprefix(b"id: ").decode() if head.startswith(b"id: ") else "", frame))
    return found


def texts(found: list[tuple[str, bytes]]) -> list[tuple[str, list[str]]]:
    """Return what each choice says in these frames, and how it ends; how frames are cut does not count."""
    said: list[tuple[str, list[str]]] = [("", []), ("", [])]
    for _, frame in found:
        data = frame.split(b"data: ", 1)[1]
        for choice in json.loads(data)["choices"] if data != b"[DONE]" else ():
            text, ends = said[choice["index"]]
            said[choice["index"]] = (
                text + choice["text"],
                ends + [choice["finish_reason"]] * bool(choice["finish_reason"]),
            )
    return said


def rest(base: str, last: str, **headers: str) -> httpx.Response:
    """Ask for what comes behind the frame with the id ``last``."""
    call = last.rsplit("/", 1)[0]
    return httpx.get(f"{base}/v1/streams/{call}", headers={"last-event-id": last, **headers}, timeout=60)
