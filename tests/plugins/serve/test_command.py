"""``infeng serve`` as a program: its start, its signals, its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from infeng_demo import adapter_dir, model_dir
from infeng_inspect.api import shorten_slice
from serve_parts import ask, connected, posted, read_until, until

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


class Program:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, model: str = str(model_dir()), **environ: str) -> None:
        self.ready = folder / "ready"
        self.log = (folder / "log").open("w+b")
        more = ("--port", "0", "--ready-file", str(self.ready), "-t", "1")
        main = "import sys; from infeng_core.cli import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", main, "serve", *([model] if model else []), *more, *arguments],
            stderr=self.log,
            stdout=self.log,
            env={**os.environ, **environ},
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where it is, once it is there."""
        assert until(lambda: self.ready.exists() or self.process.poll() is not None, 60)
        parts = urlsplit(self.ready.read_text().strip())
        return str(parts.hostname), int(parts.port or 0)

    def said(self) -> str:
        """Return what it has written."""
        self.log.seek(0)
        return self.log.read().decode()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)


EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "route" / "infeng_length" / "plugin.yaml"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[Program]]:
    """Programs that are ended with the test."""
    found: list[Program] = []
    yield found
    for program in found:
        program.process.kill()
        program.process.wait()


def has_short_slices(thread: int) -> bool:
    """Return whether a thread has asked for slices of its own, which its children do not have."""
    return sys.platform == "linux" and bool(os.sched_getscheduler(thread) & os.SCHED_RESET_ON_FORK)


def may_have_short_slices() -> bool:
    """Return whether the system lets a thread ask for them; that thread is another than this."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(shorten_slice()))
    thread.start()
    thread.join()
    return answers[0]


def test_serve_prints_its_address_and_exits_with_0_after_sigterm(tmp_path: Path, programs: list[Program]):
    manifest = tmp_path / "engine.yaml"
    manifest.write_text(f"infeng: 1\nmodel: {{path: {model_dir()}}}\nserve: {{names: [tale], max_choices: 3}}\n")
    rpc = ("--grpc-port", "0") if find_spec("smg_grpc_proto") else ()
    program = Program(
        tmp_path, "--manifest", str(manifest), *rpc, "--lora", f"poet={adapter_dir('shakespeare')}:0.5",
        model="", INFENG_API_KEY="k", INFENG_SERVE_KEEP_ALIVE="1", INFENG_LOG="info",
    )  # fmt: skip
    programs.append(program)
    bearer = {"authorization": "Bearer k"}
    assert ask(program.address, "/health").status == 200
    assert ask(program.address, "/v1/models").status == 401
    cards = ask(program.address, "/v1/models", **bearer).json["data"]
    assert [card["id"] for card in cards] == ["tale", "poet"]
    assert b"infeng:num_requests_running" in ask(program.address, "/metrics", **bearer).data
    assert has_short_slices(program.process.pid) == may_have_short_slices()
    assert program.end() == 0
    assert not program.ready.exists()
    assert all(word in program.said() for word in ("imports_ms=", "template_ms=", "serving", "draining"))
    assert "Traceback" not in program.said()
    assert not rpc or "gRPC at 127.0.0.1:" in program.said()


def test_a_name_for_both_the_base_and_an_adapter_ends_the_start(tmp_path: Path, programs: list[Program]):
    program = Program(tmp_path, "--served-model-name", "poet", "--lora", f"poet={adapter_dir('shakespeare')}")
    programs.append(program)
    assert program.process.wait(60) == 2
    assert "--lora poet: the base model has that name (--served-model-name): choose another" in program.said()


def test_ctrl_c_drains_and_a_second_one_ends_the_server_at_once(tmp_path: Path, programs: list[Program]):
    program = Program(tmp_path, "--set", "serve.drain_timeout=60")
    programs.append(program)
    pytest.importorskip("infeng_serve.protocol.completions")
    client = connected(program.address)
    client.sendall(posted("/v1/completions", {**LONG, "model": "model", "max_tokens": 900}))
    read_until(client, b'"text"')
    program.process.send_signal(signal.SIGINT)
    assert until(lambda: ask(program.address, "/ready").status == 503)
    assert program.end(signal.SIGINT) == 128 + signal.SIGINT


def test_a_model_that_fails_to_load_ends_the_command_with_its_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from infeng_core.cli import main

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["serve", str(tmp_path / "broken"), "--port", "0", "--ready-file", str(tmp_path / "ready")]) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("infeng: error: ") and "broken" in last
    assert not (tmp_path / "ready").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "70000"], "serve.port"),
        (["--grpc-port", "-1"], "serve.grpc_port"),
        (["--host", "203.0.113.7"], "203.0.113.7"),
        (["--ready-file", "/"], "--ready-file /"),
        (["--warm", "engines"], "known: adapters"),
        (["--warm-prompts", "none.jsonl"], "none.jsonl"),
        (["--tls-key", "x.pem"], "--tls-cert"),
        (["--tls-cert", "none.pem"], "none.pem"),
        (["--api-keys", "none.txt"], "none.txt"),
        (["--lora", "poet"], "--lora poet"),
        (["--api-key", "a b"], "an API key"),
        (["--set", "serve.prot=1"], "port"),
        (["--max-body", "0"], "serve.max_body"),
    ],
)
def test_wrong_usage_is_an_error_before_anything_is_loaded(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    from infeng_core.cli import main

    assert main(["serve", str(tmp_path), "--port", "0", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("infeng: error: ")
    assert says in error


def test_routes_of_plugins_are_served(tmp_path: Path, programs: list[Program]):
    program = Program(tmp_path, "--set", f"plugins.paths={EXAMPLE}")
    programs.append(program)
    assert ask(program.address, "/length", {"text": "Once upon a time"}).json["tokens"] > 0
