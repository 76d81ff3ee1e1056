"""`infeng bench serve`: a real engine under traffic, and a server behind HTTP."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.costs.step_costs import StepCosts
from infeng_bench.http import completions
from infeng_bench.http.client import Client
from infeng_bench.http.wire import Address
from infeng_bench.load.kinds import Load
from infeng_bench.load.traffic import draw

from infeng_core.api import UsageError
from infeng_core.cli import main

NAMES = [f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")]


def bench(out: Path, config: Path, *more: str) -> dict[str, Any]:
    assert main(["bench", "serve", "--synthetic", str(config), "-t", "1", "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def test_a_closed_loop_answers_every_request_and_gives_the_usual_figures(
    tiny_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--load", "tenants:greedy=3,others=1,prompt=6:20,output=5", "--requests", "8", "--clients", "3")
    result = bench(tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert (result["completed"], result["refused"], result["clients"]) == (8, {}, 3)
    assert result["total_output_tokens"] == 40
    assert result["request_throughput"] == pytest.approx(8 / result["duration"])
    assert all(result[name] >= 0 for name in NAMES)
    assert result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert "request_rate" not in result
    assert result["kernels"]
    assert result["steps"] >= 8 * 5 / 3
    assert 0 < result["mean_running"] <= 3
    assert sum(one["requests"] for one in result["per_tenant"].values()) == 8
    assert "goodput/s" in capsys.readouterr().out


def test_requests_arrive_on_time_and_step_times_are_recorded(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    fitted = tmp_path / "costs.json"
    options = ("--load", "poisson:rate=50,prompt=8,output=3", "--requests", "8", "--fit", str(fitted))
    result = bench(tmp_path / "out.json", tiny_config, *options)
    schema(result)
    last = draw(Load.parse("poisson:rate=50,prompt=8,output=3"), 8, 0, 256).at[-1]
    assert result["duration"] >= last
    assert result["request_rate"] == 50
    costs = StepCosts.read(fitted)
    assert min(costs.base) == 1
    assert costs.facts["format"] == "int4-p32-arow-h256"


def test_a_rate_of_auto_is_a_share_of_the_engines_capacity(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    costs = tmp_path / "costs.json"
    StepCosts({1: 0.001, 512: 0.011}, 0.0, 0.0, 0.0).write(costs)
    options = ("--load", "poisson:load=0.5,prompt=8,output=3", "--requests", "8", "--costs", str(costs))
    result = bench(tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert result["costs"]["base"] == [[1, 0.001], [512, 0.011]]
    assert result["request_rate"] > 100


def test_requests_of_a_zipf_load_use_their_adapters(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--load", "zipf:alpha=0,adapters=2,include_base,prompt=8,output=3", "--requests", "6", "--clients", "2")
    result = bench(tmp_path / "out.json", tiny_config, *options, "--rank", "4", "--targets", "qv")
    schema(result)
    assert {name: one["completed"] for name, one in result["per_adapter"].items()} == {"a0": 2, "a1": 2, "base": 2}
    assert result["adapter_swap_ms"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "http://localhost:1", "--model", "x"], "leave --model"),
        (["--url", "ftp://localhost"], "is no HTTP server's"),
        (["--load", "poisson:rte=1"], "did you mean `rate`?"),
        ([], "give --synthetic NAME or --model PATH"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(
    capsys: pytest.CaptureFixture[str], options: Sequence[str], said: str
) -> None:
    assert main(["bench", "serve", *options]) == 2
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ over HTTP ---


class Handler(BaseHTTPRequestHandler):
    """Answers as OpenAI's API does: a token every few milliseconds; what is asked of the model `full` is refused."""

    seen: list[dict[str, Any]]
    PAUSE = 0.005

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        models = [{"id": "tiny", "max_model_len": 64}, {"id": "lora0", "parent": "tiny"}]
        self.answer(200, json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        assert self.path == "/v1/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({**body, "authorization": self.headers["Authorization"]})
        if body["model"] == "full":
            self.answer(429, json.dumps({"error": {"message": "full", "code": "queue_full"}}))
            return
        self.send_response(200)
        self.end_headers()
        for number in range(body["max_tokens"]):
            time.sleep(self.PAUSE)
            self.event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
            if body["model"] == "broken" and number == 1:
                self.event({"error": {"message": "oh", "type": "server_error"}})
                return
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 2}}
        self.event({"choices": [], "usage": usage})
        if body["model"] != "cut":
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_server_gets_the_requests_and_is_measured_from_outside(
    server: str, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    out = tmp_path / "out.json"
    load = "tenants:greedy=2,others=1,prompt=6,output=4,urgent=1"
    options = ["--url", f"{server}/v1", "--load", load, "--requests", "8", "--clients", "2", "--json", str(out)]
    assert main(["bench", "serve", *options]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert (result["completed"], result["model"], result["total_output_tokens"]) == (8, "tiny", 32)
    assert result["mean_ttft_ms"] >= 1000 * Handler.PAUSE
    assert result["median_itl_ms"] >= 0.9 * 1000 * Handler.PAUSE
    assert result["prefix_hit_share"] == pytest.approx(2 / 6)
    assert result["duration"] >= 8 / 2 * 4 * Handler.PAUSE
    assert len(Handler.seen) == 8
    first = Handler.seen[0]
    assert first["authorization"] == "Bearer secret"
    assert (first["stream"], first["max_tokens"], first["priority"], len(first["prompt"])) == (True, 4, 1, 6)
    assert {one["user"] for one in Handler.seen} == {"greedy", "other0"}


def test_adapters_are_the_models_that_a_server_lists_with_a_parent(server: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ["--url", server, "--requests", "4", "--clients", "4", "--json", str(out), "--load"]
    assert main(["bench", "serve", *options, "zipf:alpha=0,adapters=1,include_base,prompt=4,output=2"]) == 0
    assert sorted(one["model"] for one in Handler.seen) == ["lora0", "lora0", "tiny", "tiny"]
    assert main(["bench", "serve", *options, "zipf:adapters=3"]) == 2


@pytest.mark.parametrize(
    ("model", "reason"), [("full", "queue_full"), ("broken", "server_error"), ("cut", "stream cut short")]
)
def test_requests_that_a_server_ends_are_counted_by_the_reason(server: str, model: str, reason: str) -> None:
    traffic = draw(Load.parse("poisson:rate=200,prompt=4,output=3"), 3, 0, 64)
    with Client("it", Address.of(server), completions.wire(model), 5.0) as client:
        replies, _ = client.run(list(traffic.jobs(256)))
    assert [reply.failure for reply in replies] == [reason] * 3


def test_a_server_that_refuses_everything_is_an_error(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--url", server, "--served-model", "full", "--requests", "2", "--clients", "1"]
    assert main(["bench", "serve", *options]) == 2
    assert "no request was answered (2 x queue_full)" in capsys.readouterr().err


def test_an_address_without_a_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9", "--clients", "1"]) == 1
    assert "start a server" in capsys.readouterr().err


def test_over_http_a_rate_has_to_be_given(server: str) -> None:
    with pytest.raises(UsageError, match="give rate=NUMBER"):
        draw(Load.parse("poisson"), 3, 0, 64)
    assert main(["bench", "serve", "--url", server, "--requests", "2"]) == 2
