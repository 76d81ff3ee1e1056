"""`infeng bench serve --http`: an engine in-process against the same behind HTTP, and beside another server."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.http import overhead_figures
from infeng_bench.http.client import Client
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.http.wire import Address, Count, Wire
from infeng_bench.load.place import Effort
from infeng_bench.load.requests import Job, Reply, Served
from infeng_bench.processes import PeerError
from infeng_peers import environment, exports, llama_server

from infeng_core.cli import main

FAKE = Path(__file__).with_name("fake_llama_server.py")
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def asked(job: Job) -> Mapping[str, Any]:
    return {"prompt": list(job.prompt), "new": job.new}


def told(event: Mapping[str, Any]) -> Count | None:
    return (event["tokens"], 0) if "tokens" in event else None


WIRE = Wire("/go", asked, b'"more"', told, "/ready")


def drive(address: Address, jobs: Sequence[Job], clients: int) -> tuple[list[Reply], Effort]:
    """Send jobs in a closed loop; raises PeerError unless all are answered."""
    with Client("it", address, WIRE, 5.0) as client:
        replies, effort = client.run(jobs, clients)
        client.check(replies)
    return replies, effort


# ---------------------------------------------------------------------------------------------------- the clients ---


@pytest.fixture
def answering() -> Iterator[Callable[[Sequence[Sequence[bytes]]], tuple[Address, list[bytes]]]]:
    """Return a function that starts a server: the pieces that it sends for each request, one connection at a time."""
    threads = []

    def start(answers: Sequence[Sequence[bytes]]) -> tuple[Address, list[bytes]]:
        listener = socket.create_server(("127.0.0.1", 0))
        seen: list[bytes] = []

        def serve() -> None:
            left = list(answers)
            with listener:
                while left:
                    connection, _ = listener.accept()
                    with connection:
                        while left and (request := connection.recv(1 << 16)):
                            seen.append(request)
                            pieces = left.pop(0)
                            for piece in pieces:
                                connection.sendall(piece)
                            if b"Clos" in pieces[0] or b"close" in pieces[0] or not pieces[-1].endswith(b"\r\n"):
                                break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        threads.append(thread)
        return Address("127.0.0.1", listener.getsockname()[1]), seen

    yield start
    for thread in threads:
        thread.join(5)


def stream(tokens: int, head: bytes = HEAD) -> list[bytes]:
    frames = [b'data: {"more":1}\n\n'] * tokens + [b'data: {"tokens":%d}\n\n' % tokens]
    chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]
    return [head, *chunks[:-1], chunks[-1] + b"0\r", b"\n\r\n"]


def test_a_client_reuses_its_connection_and_records_the_time_of_each_chunk(answering: Any) -> None:
    address, seen = answering([stream(2), stream(3)])
    jobs = [Job(0.0, [5, 6], 2), Job(0.0, [7], 3)]
    replies, effort = drive(address, jobs, 1)
    assert [reply.job for reply in replies] == jobs
    assert all(1 <= len(reply.times) <= reply.job.new == reply.count for reply in replies)
    first, second = replies
    assert 0 <= first.sent < first.times[0] <= second.sent < second.times[-1] <= effort.seconds
    assert 0 <= effort.cpu_share <= 1
    assert seen[0].startswith(b"POST /go HTTP/1.1\r\n")
    assert seen[0].endswith(b'\r\n\r\n{"prompt":[5,6],"new":2}')


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_client_reconnects_after_the_server_closes_the_connection(
    answering: Any, says_so: bool, clients: int
) -> None:
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n" if says_so else b"\r\nClosing: 1\r\n\r\n")
    address, seen = answering([stream(1, closing), stream(1)])
    drive(address, [Job(0.0, [5], 1)] * 2, clients)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"], "http 429"),
        (stream(1), "gave 1 tokens where 2 were asked for"),
        (stream(2)[:-1], "cut short"),
    ],
)
def test_an_incomplete_answer_is_an_error(answering: Any, answer: list[bytes], said: str) -> None:
    address, _ = answering([answer])
    with pytest.raises(PeerError, match=said):
        drive(address, [Job(0.0, [5], 2)], 1)


# -------------------------------------------------------------------------------------------------------- figures ---


def test_costs_and_ratios_are_computed_per_pair() -> None:
    reply = Reply(Job(0.0, [1], 10), 0.0, 0.0, [0.5, 0.6, 0.8], 10, ended=0.8)
    rounds = {
        IN_PROCESS: [Served([reply], 1.0, 2.0, 1)] * 3,
        SERVED: [
            Served([reply], seconds, cpu, 1, client_cpu_seconds=0.001, loop_cpu_seconds=0.0005)
            for seconds, cpu in ((1.25, 2.001), (2.0, 2.003), (1.6, 2.002))
        ],
        "other": [Served([reply], 4.0, 8.0, 1)] * 3,
    }
    found = overhead_figures.figures(1, 0, rounds)
    assert found["served_ratio"]["median"] == pytest.approx(1 / 1.6)
    assert found["served_ratio_low"] == pytest.approx(0.5)
    assert found["http_cpu_us_per_token"]["median"] == pytest.approx(200)
    assert found["http_wall_us_per_token"]["median"] == pytest.approx(60_000)
    assert found["ratios"]["other"]["median"] == pytest.approx(2.5)
    served = found["engines"][SERVED]
    assert served["client_cpu_us_per_token"]["median"] == pytest.approx(100)
    assert served["loop_cpu_us_per_token"]["median"] == pytest.approx(50)
    assert "loop_cpu_us_per_token" not in found["engines"]["other"]
    assert served["median_ttft_ms"] == pytest.approx(500)
    assert served["median_itl_ms"] == pytest.approx(150)
    assert "client_cpu_us_per_token" not in found["engines"][IN_PROCESS]


# -------------------------------------------------------------------------------------------------------- servers ---


def test_a_server_that_exits_while_loading_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('error: no such model')"]
    server = ServerProcess("it", lambda port: command, WIRE, tmp_path / "log", 20.0)
    try:
        with pytest.raises(PeerError, match="ended with status 1: error: no such model"):
            server.ready()
    finally:
        server.close()


def test_llama_server_has_a_slot_per_client_and_adapters_chosen_per_request(tmp_path: Path) -> None:
    line = llama_server.command(
        tmp_path, tmp_path, 80, threads=2, places=4, positions=300, adapters=[Path("a"), Path("b")]
    )
    assert line[line.index("-np") + 1] == "4"
    assert line[line.index("-c") + 1] == str(4 * 512)
    assert line[-5:] == ["--lora", "a", "--lora", "b", "--lora-init-without-apply"]
    body = llama_server.wire(["x", "y"]).body(Job(0.0, [5], 7, "y"))
    assert body["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    assert (body["prompt"], body["n_predict"], body["ignore_eos"]) == ([5], 7, True)
    with pytest.raises(PeerError, match="install --force llama_cpp"):
        llama_server.program(tmp_path)


@pytest.mark.slow
def test_the_same_requests_go_to_the_engine_to_our_server_and_to_a_peer(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("infeng_serve", reason="the serve wheel is not installed")
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(environment.Environment, "require", lambda self: {})
    monkeypatch.setattr(llama_server, "program", lambda folder: program)
    monkeypatch.setattr(exports, "peer_model", lambda peer, source, format: source)
    monkeypatch.setattr(exports, "peer_adapter", lambda peer, adapter, base: adapter)
    out = tmp_path / "out.json"
    options = ["--http", "--clients", "2", "--adapters", "2", "--rank", "4", "--peer", "llama_cpp"]
    options += ["--pairs", "2", "--each", "1", "--prompt", "4", "--new", "5", "--json", str(out)]
    assert main(["bench", "serve", "--synthetic", str(tiny_config), "-t", "1", *options]) == 0
    result = json.loads(out.read_text())
    schema(result)
    base, mixed = result["measurements"]
    assert [(one["clients"], one["adapters"]) for one in (base, mixed)] == [(2, 0), (2, 2)]
    for one in (base, mixed):
        assert list(one["engines"]) == [IN_PROCESS, SERVED, "llama_cpp"]
        assert one["tokens"] == 10
        assert one["served_ratio"]["median"] > 0
        assert one["engines"][SERVED]["cpu_us_per_token"]["median"] > 0
        assert one["pair_count"] == 2
    assert "HTTP cpu us/tok" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clients", "1,2"], "with --http only"),
        (["--http", "--url", "http://localhost:1"], "starts a server of its own"),
        (["--http"], "give --synthetic NAME or --model PATH"),
        (["--http", "--synthetic", "tinyllama-1.1b", "--adapters", "2", "--alpha", "nan"], "alpha is 'nan'"),
    ],
)
def test_conflicting_options_are_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["bench", "serve", *options]) == 2
    assert said in capsys.readouterr().err


def asleep(pid: int) -> bool:
    """Wait, on a busy machine, until the process is stopped."""
    state, end = Path(f"/proc/{pid}/stat"), time.monotonic() + 5
    while not (is_stopped := state.read_text().rsplit(")", 1)[1].split()[0] == "T") and time.monotonic() < end:
        time.sleep(0.01)
    return is_stopped


def test_a_server_process_runs_during_its_rounds_and_is_stopped_between_them(tmp_path: Path) -> None:
    command = [sys.executable, str(FAKE)]
    server = ServerProcess(
        "it", lambda port: [*command, "--port", str(port)], llama_server.wire([]), tmp_path / "log", 20.0
    )
    try:
        server.ready()
        assert asleep(server.process.pid)
        served = server.serve([Job(0.0, [1], 3)], 1)
        assert asleep(server.process.pid)
        assert 0 < served.cpu_seconds < 5
        assert served.peak_rss_bytes > 1 << 20
    finally:
        server.close()
    assert server.process.returncode is not None
