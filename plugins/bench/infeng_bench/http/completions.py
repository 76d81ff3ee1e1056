"""Traffic on any OpenAI-compatible server: POST /v1/completions with streaming."""

from __future__ import annotations

import http.client
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from infeng_bench.load.driver import Driver
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.traffic import Arrival, Traffic
from infeng_core.api import ResourceError, UsageError

VOCAB = 256  # bound of the prompts' ids: every vocabulary has these
CONTEXT = 2048  # most positions of a request if the server does not report max_model_len


@dataclass(frozen=True)
class Server:
    """The server's URL and how to reach it."""

    url: str
    key: str | None = None  # sent as a bearer token
    timeout: float = 600.0  # seconds without a byte after which a request has failed

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, which opens at first use; raises UsageError for a URL that is not HTTP."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme not in ("http", "https"):
            raise UsageError(f"--url {self.url!r}", "is no HTTP server's", "give http://HOST:PORT")
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self.timeout)
        return http.client.HTTPConnection(host, port, timeout=self.timeout)

    def path(self, route: str) -> str:
        """Return the path of ``route``; the URL may end in /v1 or not."""
        base = urlsplit(self.url).path.rstrip("/").removesuffix("/v1")
        return f"{base}/v1/{route}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        found = {"Content-Type": "application/json"}
        return found | {"Authorization": f"Bearer {self.key}"} if self.key else found

    def models(self) -> list[dict[str, Any]]:
        """Return the entries of /v1/models; raises ResourceError if there are none or the answer has another form."""
        connection = self.connect()
        try:
            connection.request("GET", self.path("models"), headers=self.headers)
            answer = connection.getresponse()
            body = answer.read()
            listed: list[dict[str, Any]] = json.loads(body)["data"]
            if answer.status == 200 and listed:
                return listed
            why = f"/v1/models answers {answer.status} with {len(listed)} models"
        except (OSError, http.client.HTTPException) as error:
            why = f"no server answers ({error})"
        except (ValueError, KeyError, TypeError) as error:
            why = f"/v1/models does not have the form of OpenAI's API ({error})"
        finally:
            connection.close()
        raise ResourceError(self.url, why, "start a server, or give another --url")


class _FailedError(Exception):
    """A request ended without an answer; the text is the reason under which results count it."""


def drive(
    server: Server,
    model: str,
    traffic: Traffic,
    *,
    clients: float = math.inf,
    done: Callable[[], object] = lambda: None,
) -> Outcomes:
    """Send all requests of ``traffic``, each on a thread of its own, and return their outcomes.

    model: the model's name for requests without an adapter; an adapter has a name of its own. The tenant is sent as
    ``user``. clients, done: as in Driver.
    """
    driver = _HttpDriver(server, model, traffic, clients, done)
    driver.run()
    return driver.outcomes


class _HttpDriver(Driver):
    """Sends and times each request on a thread of its own."""

    def __init__(
        self, server: Server, model: str, traffic: Traffic, clients: float, done: Callable[[], object]
    ) -> None:
        super().__init__(traffic, clients, done)
        self._server = server
        self._model = model

    def prepared(self, place: int, arrival: Arrival) -> str:
        """Return the body as JSON."""
        return json.dumps(self._body(place, arrival))

    def submit(self, place: int, arrival: Arrival, made: str) -> None:
        """Start a thread that sends the request."""
        connection = self._server.connect()
        threading.Thread(target=self._send, args=(place, made, connection), daemon=True).start()

    def _send(self, place: int, body: str, connection: http.client.HTTPConnection) -> None:
        """Send a request, read its answer to the end, and start the next request."""
        times: list[float] = []
        why: str | None = None
        try:
            connection.request("POST", self._server.path("completions"), body, self._server.headers)
            usage = self._read(connection.getresponse(), times)
            if times:
                self._record(place, times, usage)
            else:
                why = "no token"
        except _FailedError as error:
            why = str(error)
        except (OSError, http.client.HTTPException) as error:
            why = type(error).__name__
        finally:
            connection.close()
            self.ended(why)
            self.fill()

    def _body(self, place: int, arrival: Arrival) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": arrival.adapter or self._model,
            "prompt": self.traffic.ids(place, VOCAB),
            "max_tokens": arrival.new,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if arrival.tenant:
            body["user"] = arrival.tenant
        if arrival.priority:
            body["priority"] = arrival.priority
        return body

    def _read(self, answer: http.client.HTTPResponse, times: list[float]) -> Mapping[str, Any]:
        """Append the time of each piece of text to ``times``; return the usage of the last chunk, {} if none."""
        if answer.status != 200:
            raise _FailedError(_reason(answer.read(), f"http {answer.status}"))
        usage: Mapping[str, Any] = {}
        for data in _events(answer):
            if "error" in data:
                raise _FailedError(_reason(json.dumps(data).encode(), "error"))
            if data.get("choices") and (data["choices"][0].get("text") or data["choices"][0].get("token_ids")):
                times.append(self.now())
            usage = data.get("usage") or usage
        return usage

    def _record(self, place: int, times: list[float], usage: Mapping[str, Any]) -> None:
        found = self.outcomes
        details = usage.get("prompt_tokens_details") or {}
        with self.lock:
            found.first[place], found.last[place] = times[0], times[-1]
            found.tokens[place] = int(usage.get("completion_tokens") or len(times))
            found.cached[place] = int(details.get("cached_tokens") or 0)
            found.is_done[place] = True
            for early, late in pairwise(times):
                found.gaps.add(late - early)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each ``data:`` line up to [DONE]; raises _FailedError if the answer is not such a stream."""
    for line in answer:
        name, _, data = line.decode("utf-8", "replace").strip().partition(":")
        if name != "data":
            continue
        if data.strip() == "[DONE]":
            return
        try:
            parsed = json.loads(data)
        except ValueError:
            raise _FailedError("not an event stream") from None
        if not isinstance(parsed, dict):
            raise _FailedError("not an event stream")
        yield parsed
    raise _FailedError("stream cut short")


def _reason(body: bytes, otherwise: str) -> str:
    """Return the code or type of an error of OpenAI's API; ``otherwise`` if the body has neither."""
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or otherwise)
    except (ValueError, KeyError, TypeError, AttributeError):
        return otherwise
