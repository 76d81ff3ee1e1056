"""A server at work, watched by the Prometheus of docs/examples/monitoring: every query gives a number."""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from infeng_demo import adapter_dir, model_dir
from monitoring_parts import EXAMPLE, RULES, THRESHOLD, alert_queries, dashboard_queries
from serve_parts import ask, until

pytestmark = pytest.mark.slow

MAIN = "import sys; from infeng_core.cli import main; sys.exit(main())"
Address = tuple[str, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """``infeng serve`` with two adapters and keys of two tenants, acme's and zeta's."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text("a-secret acme\nz-secret zeta\no-secret operator *\n")
    (folder / "keys").chmod(0o600)
    arguments = ["--port", "0", "--ready-file", folder / "ready", "-t", "1", "--api-keys", folder / "keys"]
    for name, adapter in (("bard", "shakespeare"), ("coder", "python")):
        arguments += ["--lora", f"{name}={adapter_dir(adapter)}"]
    command = [sys.executable, "-P", "-c", MAIN, "serve", model_dir(), *arguments]
    with (folder / "log").open("wb") as log, subprocess.Popen(list(map(str, command)), stderr=log) as process:
        assert until(lambda: (folder / "ready").exists() or process.poll() is not None, 60)
        parts = urllib.parse.urlsplit((folder / "ready").read_text().strip())
        yield str(parts.hostname), int(parts.port or 0)
        process.terminate()
        assert process.wait(30) == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def prometheus(server: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Prometheus with the files of the example, but for address, key and shorter intervals."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: it is a package of Debian")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "key").write_text("o-secret\n")
    shutil.copy(EXAMPLE / "alerts.yml", folder)
    text = (EXAMPLE / "prometheus.yml").read_text()
    for old, new in {
        "localhost:8000": "{}:{}".format(*server),
        "scrape_interval: 5s": "scrape_interval: 1s",
        "evaluation_interval: 15s": "evaluation_interval: 1s",
        "# authorization: {credentials_file: /etc/prometheus/infeng.key}": "authorization: {credentials_file: key}",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]
    listen = f"--web.listen-address={address[0]}:{address[1]}"
    with subprocess.Popen([*command, listen], cwd=folder) as process:
        assert until(lambda: is_up(address), 60)
        yield address
        process.terminate()


def is_up(address: Address) -> bool:
    try:
        return ask(address, "/-/ready").status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.fixture(scope="module")
def traffic(server: Address) -> Iterator[None]:
    """Calls of both tenants, with and without adapters, and some that are not accepted."""
    ended = threading.Event()

    def work() -> None:
        for number in range(1 << 30):
            if ended.is_set():
                return
            model = (model_dir().name, "bard", "coder", "nobody")[number % 4]
            body = {"model": model, "prompt": f"Once upon a time {number % 3} there was a lion", "max_tokens": 12}
            key = ("a-secret", "z-secret", "wrong")[number % 3]
            ask(server, "/v1/completions", {**body, "ignore_eos": True}, authorization=f"Bearer {key}")
            time.sleep(0.02)

    time.sleep(2.5)  # scrapes before anything has happened, from which rates begin
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(30)


def found(prometheus: Address, query: str) -> list[float]:
    """Return the values that a query gives now."""
    reply = ask(prometheus, f"/api/v1/query?query={urllib.parse.quote(query)}").json
    assert reply["status"] == "success", reply
    result: Any = reply["data"]["result"]
    return [float(one["value"][1]) for one in result]


@pytest.fixture(scope="module")
def watched(prometheus: Address, traffic: None) -> Address:
    """Prometheus after it has seen traffic for a while."""
    time.sleep(8)
    return prometheus


QUERIES = {**dashboard_queries(), **alert_queries()}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_numbers(watched: Address, name: str):
    query = THRESHOLD.sub("", QUERIES[name])
    assert until(lambda: (values := found(watched, query)) and all(map(math.isfinite, values)), 15), (
        query,
        found(watched, query),
    )


def test_prometheus_has_read_the_server_and_taken_every_rule(watched: Address):
    [target] = ask(watched, "/api/v1/targets").json["data"]["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    [group] = ask(watched, "/api/v1/rules").json["data"]["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {rule["alert"]: "ok" for rule in RULES}


def test_the_values_in_prometheus_match_the_calls(watched: Address):
    assert found(watched, 'sum by (tenant) (infeng:tenant_requests_total{tenant=~"acme|zeta"}) > 3')
    assert len(found(watched, "infeng:lora_requests_total > 3")) == 3
    for reason in ("unauthorized", "not_found"):
        assert found(watched, f'infeng:admission_rejections_total{{reason="{reason}"}} > 3'), reason
    [sum_of_tenants] = found(watched, "sum(infeng:tenant_generation_tokens_total)")
    [total] = found(watched, "sum(infeng:generation_tokens_total)")
    assert total > 100 and sum_of_tenants == pytest.approx(total, rel=0.2)  # a scrape may lie between the two


def test_top_shows_the_same_server(server: Address, traffic: None):
    url = "http://{}:{}".format(*server)
    words = ["top", url, "--once", "--json", "--interval", "2"]
    environment = {**os.environ, "INFENG_API_KEY": "o-secret"}
    command = [sys.executable, "-P", "-c", MAIN, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["generation_tokens"] > 1 and shown["ttft_ms"]["p50"] > 0
    assert {row["name"] for row in shown["tenants"]} == {"acme", "zeta"}
    assert {row["name"] for row in shown["adapters"]} == {"bard", "coder", "base"}
