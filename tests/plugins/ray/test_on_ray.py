"""`infeng ray` with one to two replicas: the bytes of one server, and nothing lost when replicas come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from infeng_demo import adapter_dir, model_dir
from infeng_serve.auth import Keys
from serve_parts import Reply, ask, running, until
from stream_parts import DONE

pytestmark = pytest.mark.slow

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
LONG = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.8, "stream": True}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "The king", "max_tokens": 24, "temperature": 0, "stream": True}),
    ("/v1/completions", {"model": "bard", "prompt": "The king", "max_tokens": 24, "seed": 5, "stream": True}),
    ("/v1/completions", {"model": "bard", "prompt": "The king", "max_tokens": 24, "seed": 5}),
    ("/v1/completions", {
        "prompt": "A name: ", "max_tokens": 40, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}}),
]  # fmt: skip
A, B, OPS = ({"authorization": f"Bearer sk-{name}"} for name in ("a", "b", "ops"))


@dataclass
class Cluster:
    """`infeng ray` that runs."""

    url: str
    folder: Path

    def ask(self, path: str, body: Any = None, **headers: str) -> Reply:
        parts = urlsplit(self.url)
        return ask((str(parts.hostname), int(parts.port or 0)), path, body, **headers)

    def ready(self) -> int:
        return sum(one["ready"] for one in self.ask("/replicas", **OPS).json["replicas"])

    def servers(self) -> dict[int, set[int]]:
        """Return the processes of the replicas' servers, with the cores that they may use."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and str(self.folder / "keys").encode() in b" ".join(words):
                found[int(path.parent.name)] = os.sched_getaffinity(int(path.parent.name))
        return found


@pytest.fixture(scope="module")
def cluster(ray_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "keys").write_text("sk-a acme\nsk-b beta\nsk-ops ops * admin\n")
    code = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [
        ray_python, "-P", "-c", code, "ray", model_dir(), "--replicas", "1:2", "--cores", "1", "--port", "0",
        "--ready-file", folder / "url", "--api-keys", folder / "keys", "--journal", folder / "journal",
        "--lora", f"bard={adapter_dir('shakespeare')}", "--lora-root", adapter_dir("python").parent,
        "--up-after", "1", "--down-after", "4", "--set", "scheduler.max_running=4", "--set", "scheduler.max_wait_ms=0",
    ]  # fmt: skip
    # Ray keeps its sockets below a folder whose name has to be short, and its token in the home directory.
    more = {"HOME": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("w") as log:
        words = [str(word) for word in command]  # Ray's workers import from its folder as well
        process = subprocess.Popen(words, cwd=folder, env=os.environ | more, stdout=log, stderr=log)
    found = Cluster("", folder)
    try:
        assert until(lambda: (folder / "url").exists() or process.poll() is not None, 180), (folder / "log").read_text()
        assert process.poll() is None, (folder / "log").read_text()
        found.url = (folder / "url").read_text().strip()
        yield found
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, (folder / "log").read_text()
        assert until(lambda: not found.servers(), 20)
    finally:
        process.kill()


def text_of(data: bytes) -> tuple[str, list[str]]:
    """Return what a completion says, streamed or whole, and how it ends."""
    text, ends = "", []
    bodies = [frame.partition(b"data: ")[2] for frame in data.split(b"\n\n") if b"data: " in frame] or [data]
    for body in bodies:
        if body != b"[DONE]":
            assert b'"error"' not in body, body
            for choice in json.loads(body)["choices"]:
                text += choice["text"]
                ends += [choice["finish_reason"]] * bool(choice["finish_reason"])
    return text, ends


def streamed(url: str, prompt: str, got: list[bytes] | None = None, model: str = "bard") -> bytes:
    """Return a whole stream; ``got`` has its parts meanwhile."""
    got = [] if got is None else got
    body = {"model": model, "prompt": prompt, "seed": len(prompt), **LONG}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=A, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for data in answer.iter_bytes():
            got.append(data)
    return b"".join(got)


def test_its_answers_are_those_of_one_server(cluster: Cluster):
    with running(keys=Keys(file=cluster.folder / "keys")) as one:
        for path, body in CALLS:
            mine, its = cluster.ask(path, body, **A), one.ask(path, body, **A)
            assert (mine.status, text_of(mine.data)) == (its.status, text_of(its.data))
        missing = {"model": "nobody", "prompt": "x"}
        assert [cluster.ask("/v1/completions", missing, **A).status, cluster.ask("/v1/models").status] == [404, 401]


def test_its_replicas_have_cores_of_their_own(cluster: Cluster):
    servers = cluster.servers()
    assert len(servers) == cluster.ready() and all(len(cores) == 1 for cores in servers.values())


def test_a_stream_is_resumed_through_the_gateway(cluster: Cluster):
    whole = streamed(cluster.url, "To be")
    frames = whole.split(b"\n\n")
    last = frames[3].split(b"\n")[0].removeprefix(b"id: ").decode()
    path = f"/v1/streams/{last.partition('/')[0]}"
    rest = cluster.ask(path, last_event_id=last, **A)
    assert rest.status == 200 and text_of(b"\n\n".join(frames[:4]) + b"\n\n" + rest.data) == text_of(whole)
    assert cluster.ask(path, last_event_id=last, **B).status == 404  # another tenant's


def test_tenants_see_their_own_adapters(cluster: Cluster):
    assert cluster.ask("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": "python"}, **A).status == 200
    call = {"model": "mine", "prompt": "def f", "max_tokens": 4}
    assert [cluster.ask("/v1/completions", call, **who).status for who in (A, B)] == [200, 404]


def test_one_replica_becomes_two_under_load_and_one_again_and_no_answer_is_lost(cluster: Cluster):
    whole = {f"{'x' * k} the": text_of(streamed(cluster.url, f"{'x' * k} the")) for k in range(4)}
    mine = cluster.ask("/v1/completions", {"model": "mine", "prompt": "def f", "max_tokens": 4, "seed": 1}, **A)
    stop = threading.Event()

    def call_again(number: int) -> int:
        count, prompt = 0, f"{'x' * (number % 4)} the"
        while not stop.is_set():
            assert text_of(streamed(cluster.url, prompt)) == whole[prompt]
            count += 1
        return count

    with ThreadPoolExecutor(12) as pool:
        callers: list[Future[int]] = [pool.submit(call_again, number) for number in range(12)]
        try:
            assert until(lambda: cluster.ready() == 2, 90), cluster.ask("/replicas", **OPS).json
            assert len({*map(tuple, cluster.servers().values())}) == 2  # each on a core of its own
            # the new replica knows what a tenant has loaded
            again = {"model": "mine", "prompt": "def f", "max_tokens": 4, "seed": 1}
            texts = {text_of(cluster.ask("/v1/completions", again, **A).data)[0] for _ in range(4)}
            assert texts == {text_of(mine.data)[0]}
        finally:
            stop.set()
        assert all(caller.result(120) >= 1 for caller in callers)
    trickle: list[str] = []
    assert until(lambda: trickle.append(streamed(cluster.url, " the").decode()) or cluster.ready() == 1, 120)  # type: ignore[func-returns-value]
    assert all(text_of(data.encode()) == whole[" the"] for data in trickle)


def test_a_killed_replica_loses_nothing_that_its_journal_has(cluster: Cluster):
    assert until(lambda: cluster.ready() == len(cluster.servers()) == 1, 60)
    whole = streamed(cluster.url, "Before")
    got: list[bytes] = []
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, cluster.url, "Before", got)
        assert until(lambda: len(got) >= 3, 60)
        [server] = cluster.servers()
        os.kill(server, signal.SIGKILL)
        assert text_of(stream.result(120)) == text_of(whole)
    assert b"".join(got).endswith(DONE + b"\n\n")
    assert cluster.servers().keys() != {server}
    assert "infeng:gateway_resumed_total 1.0" in cluster.ask("/metrics", **OPS).data.decode()
