"""OpenAI's API: POST /v1/completions with token ids as the prompt, and the models that a server lists."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any

from infeng_bench.http.wire import Address, Count, Wire
from infeng_bench.load.requests import Job
from infeng_core.api import ResourceError


def wire(
    model: str,
    key: Callable[[Job], str] = lambda job: "",
    *,
    streams: bool = True,
    mark: bytes = b"data:",
    names_users: bool = False,
) -> Wire:
    """Return the wire format.

    model: the model's name for requests without an adapter; an adapter has a name of its own. key: the API key of a
    request, or "". mark: occurs in every frame with text and in no other; by default events are read afterwards.
    names_users: whether the tenant is sent as ``user``, and the priority.
    """

    def body(job: Job) -> Mapping[str, Any]:
        asked: dict[str, Any] = {
            "model": job.adapter or model,
            "prompt": list(job.prompt),
            "max_tokens": job.new,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        if streams:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if names_users and job.tenant:
            asked["user"] = job.tenant
        if names_users and job.priority:
            asked["priority"] = job.priority
        return asked

    def headers(job: Job) -> str:
        return f"Authorization: Bearer {key(job)}\r\n" if key(job) else ""

    is_known = mark != b"data:"
    has_text = None if is_known else _has_text
    return Wire("/v1/completions", body, mark, _count, "/ready", "/load", headers, has_text, "[DONE]")


def _count(event: Mapping[str, Any]) -> Count | None:
    usage = event.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return int(usage.get("completion_tokens") or 0), int(details.get("cached_tokens") or 0)


def _has_text(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    return bool(choices and (choices[0].get("text") or choices[0].get("token_ids")))


def models(address: Address, key: str, timeout: float) -> list[dict[str, Any]]:
    """Return the entries of /v1/models; raises ResourceError if there are none or the answer has another form."""
    kind = http.client.HTTPSConnection if address.is_encrypted else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=timeout)
    try:
        sent = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", f"{address.path}/v1/models", headers=sent)
        answer = connection.getresponse()
        listed: list[dict[str, Any]] = json.loads(answer.read())["data"]
        if answer.status == 200 and listed:
            return listed
        why = f"/v1/models answers {answer.status} with {len(listed)} models"
    except (OSError, http.client.HTTPException) as error:
        why = f"no server answers ({error})"
    except (ValueError, KeyError, TypeError) as error:
        why = f"/v1/models does not have the form of OpenAI's API ({error})"
    finally:
        connection.close()
    raise ResourceError(f"{address.host}:{address.port}", why, "start a server, or give another --url")
