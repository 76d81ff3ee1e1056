"""A server of the OpenAI protocol with a scripted answer, for failures that a real server does not show on demand.

``FakeModel`` makes the bytes of answers and of resumed streams, without a socket; ``FakeServer`` serves them over HTTP,
breaks connections at chosen bytes, refuses, and counts how many calls run at once.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PIECES = ("Es", " wär", "e ", "日本", "語 ", "🦙", "\n\n", '"so"', " \\ ", "end")
"""The answer to every prompt, after the prompt itself: characters of one to four bytes."""


class Refusal(NamedTuple):
    """A response in place of an answer."""

    status: int
    headers: Mapping[str, str] = {}
    body: Any = None


class Seen(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class FakeModel:
    """Answers ``prompt + PIECES``, one token per piece; keeps its calls, so that streams can be resumed."""

    def __init__(self) -> None:
        """Start without calls."""
        self.calls: dict[str, tuple[bool, Mapping[str, Any]]] = {}

    def tokens(self, name: str) -> list[list[dict[str, Any]]]:
        """Return the delta of each token of each choice of a call."""
        chat, body = self.calls[name]
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        choices = []
        for choice in range(body.get("n", 1)):
            pieces = [str(prompt), *PIECES, *(f" {choice}" for _ in range(choice))]
            deltas: list[dict[str, Any]] = [{"content": piece} if chat else {"text": piece} for piece in pieces]
            if body.get("tools"):
                deltas = list(_tool_deltas())
            if body.get("reasoning"):
                deltas[:0] = [{"reasoning_content": "Hm"}, {"reasoning_content": "m."}]
            choices.append(deltas)
        return choices

    def frames(self, name: str, seen: list[int] | None = None) -> Iterator[bytes]:
        """Yield the frames of a stream after the tokens of each choice that the client has seen."""
        chat, body = self.calls[name]
        choices = self.tokens(name)
        counts = list(seen or [0] * len(choices))

        def frame(**fields: Any) -> bytes:
            mark = ".".join(map(str, counts))
            raw = {"id": f"{'chat' * chat}cmpl-{name}", "object": _object(chat) + ".chunk", "model": "base", **fields}
            return f"id: {name}/{mark}\ndata: {json.dumps(raw, ensure_ascii=False)}\n\n".encode()

        if chat and not any(counts):
            for index in range(len(choices)):
                yield frame(choices=[{"index": index, "delta": {"role": "assistant", "content": ""}}])
        for step in range(max(map(len, choices))):
            for index, deltas in enumerate(choices):
                if counts[index] > step or step >= len(deltas):
                    continue
                counts[index] += 1
                choice = {"index": index, **({"delta": deltas[step]} if chat else deltas[step])}
                if body.get("logprobs"):
                    choice["logprobs"] = _logprobs(chat, step)
                yield frame(choices=[choice | {"finish_reason": None}])
        for index in range(len(choices)):
            part: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            yield frame(choices=[{"index": index, **part, "finish_reason": _reason(body)}])
        if body.get("stream_options", {}).get("include_usage"):
            yield frame(choices=[], usage=self.usage(name))
        yield f"id: {name}/{'.'.join(map(str, counts))}\ndata: [DONE]\n\n".encode()

    def usage(self, name: str) -> dict[str, Any]:
        """Return the usage of a call."""
        tokens = sum(map(len, self.tokens(name)))
        details = {"cached_tokens": 2}
        return {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens,
                "prompt_tokens_details": details}  # fmt: skip

    def body(self, name: str) -> dict[str, Any]:
        """Return the answer without streaming."""
        chat, body = self.calls[name]
        choices = []
        for index, deltas in enumerate(self.tokens(name)):
            choice: dict[str, Any] = {"index": index, "finish_reason": _reason(body)}
            words = {
                key: "".join(delta.get(key, "") for delta in deltas) for key in ("text", "content", "reasoning_content")
            }
            if chat:
                choice["message"] = {"role": "assistant", "content": words["content"]}
                choice["message"] |= {"reasoning_content": words["reasoning_content"]} if body.get("reasoning") else {}
                choice["message"] |= {"tool_calls": TOOL_CALLS} if body.get("tools") else {}
            else:
                choice["text"] = words["text"]
            if body.get("logprobs"):
                choice["logprobs"] = {}
                for step in range(len(deltas)):
                    for key, values in _logprobs(chat, step).items():
                        choice["logprobs"].setdefault(key, []).extend(values)
            choices.append(choice)
        id = f"{'chat' * chat}cmpl-{name}"
        return {"id": id, "object": _object(chat), "model": "base", "choices": choices, "usage": self.usage(name)}


def _object(chat: bool) -> str:
    return "chat.completion" if chat else "text_completion"


def _reason(body: Mapping[str, Any]) -> str:
    return "tool_calls" if body.get("tools") else "stop"


ARGUMENTS = '{"city": "Zürich", "days": [1, 2]}'
TOOL_CALLS = [
    {"index": place, "id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
    for place, name in enumerate(("weather", "traffic"))
]


def _tool_deltas() -> Iterator[dict[str, Any]]:
    for call in TOOL_CALLS:
        yield {"tool_calls": [call | {"function": {**call["function"], "arguments": ""}}]}
        for character in ARGUMENTS:
            yield {"tool_calls": [{"index": call["index"], "function": {"arguments": character}}]}


def _logprobs(chat: bool, step: int) -> dict[str, Any]:
    token, value = PIECES[step % len(PIECES)], -0.5 * step
    if chat:
        return {"content": [{"token": token, "logprob": value, "top_logprobs": [{"token": "x", "logprob": -9.0}]}]}
    return {"tokens": [token], "token_logprobs": [value], "top_logprobs": [{"x": -9.0}], "text_offset": [step]}


class FakeServer:
    """Serves a FakeModel on a port of its own; a context manager."""

    def __init__(self) -> None:
        """Listen."""
        self.model = FakeModel()
        self.seen: list[Seen] = []
        self.refusals: deque[Refusal] = deque()
        """Responses to the next calls, one each."""
        self.cuts: deque[int] = deque()
        """The number of body bytes after which each of the next streams breaks off; 0: right after the headers."""
        self.drops = 0
        """The number of next connections that are closed without a response."""
        self.forgets = False
        """Whether the server refuses to resume streams."""
        self.delay = 0.0
        """Seconds before each frame."""
        self.pauses: deque[float] = deque()
        """Seconds before each of the next frames, instead of ``delay``."""
        self.running = self.most = 0
        self.abandoned = threading.Event()
        """Set when a client disconnects during a stream."""
        self.adapters: dict[str, str] = {}
        self.keyed: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> FakeServer:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._http.shutdown()
        self._http.server_close()

    def paths(self) -> list[str]:
        """Return the requests in order."""
        return [seen.path for seen in self.seen]

    def runs(self, by: int) -> None:
        """Count a call that begins (1) or ends (-1)."""
        with self._lock:
            self.running += by
            self.most = max(self.most, self.running)

    def begin(self, chat: bool, key: str, body: Mapping[str, Any]) -> str:
        """Return the id of a call; a repeated key returns the id of its first call."""
        with self._lock:
            name = self.keyed.setdefault(key, f"call{len(self.keyed)}")
            self.model.calls[name] = (chat, body)
            self.counts[name] += 1
            return name


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.loads(content) if content else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.seen.append(Seen(self.command, self.path, headers, body))
            if server.drops:
                server.drops -= 1
                return self._break()
            if server.refusals:
                refusal = server.refusals.popleft()
                return self._answer(refusal.status, refusal.body, refusal.headers)
            server.runs(1)
            try:
                return self._route(headers, body)
            finally:
                server.runs(-1)

        def _route(self, headers: Mapping[str, str], body: Any) -> None:
            if self.path in ("/v1/completions", "/v1/chat/completions"):
                name = server.begin("chat" in self.path, headers.get("idempotency-key", self.path), body)
                if body.get("stream"):
                    return self._stream(server.model.frames(name))
                time.sleep(server.delay)
                return self._answer(200, server.model.body(name))
            if self.path.startswith("/v1/streams/"):
                name = self.path.rpartition("/")[2]
                if server.forgets or name not in server.model.calls:
                    return self._answer(404, _error("no such stream", "not_found_error"))
                counts = [int(count) for count in headers["last-event-id"].rpartition("/")[2].split(".")]
                return self._stream(server.model.frames(name, counts))
            answer = ROUTES.get(self.path)
            if answer is None:
                return self._answer(404, _error(f"no route {self.path}", "not_found_error"))
            return self._answer(200, answer(server, body))

        def _answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
            content = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("x-request-id", f"req-{len(server.seen)}")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, frames: Iterator[bytes]) -> None:
            left = server.cuts.popleft() if server.cuts else None
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("x-request-id", f"req-{len(server.seen)}")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            try:
                for frame in frames:
                    time.sleep(server.pauses.popleft() if server.pauses else server.delay)
                    part = frame if left is None else frame[:left]
                    if part:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                        self.wfile.flush()
                    if left is not None and left <= len(frame):
                        return self._break()
                    left = None if left is None else left - len(frame)
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                server.abandoned.set()
                self.close_connection = True

        def _break(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _error(message: str, type: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": None}}


def _models(server: FakeServer, _: Any) -> Any:
    adapters = [{"id": name, "root": path, "parent": "base"} for name, path in server.adapters.items()]
    return {"object": "list", "data": [{"id": "base", "root": "/models/base", "parent": None}, *adapters]}


def _load(server: FakeServer, body: Any) -> Any:
    server.adapters[body["lora_name"]] = body["lora_path"]


def _unload(server: FakeServer, body: Any) -> Any:
    del server.adapters[body["lora_name"]]


def _embeddings(_: FakeServer, body: Any) -> Any:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    data = [{"index": place, "embedding": [float(len(text)), 0.5]} for place, text in enumerate(texts)]
    return {"data": data[::-1], "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)}}


ROUTES: Mapping[str, Callable[[FakeServer, Any], Any]] = {
    "/health": lambda server, body: {"status": "ok"},
    "/v1/models": _models,
    "/v1/load_lora_adapter": _load,
    "/v1/unload_lora_adapter": _unload,
    "/v1/embeddings": _embeddings,
    "/tokenize": lambda server, body: {"tokens": list(body["prompt"].encode())},
    "/detokenize": lambda server, body: {"prompt": bytes(body["tokens"]).decode()},
}
