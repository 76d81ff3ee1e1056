"""`infeng bench simulate --replicas`: many servers behind the routers of infeng-ray, on a virtual clock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from infeng_bench.reports.results import schema
from infeng_ray.router import ROUTES, Rendezvous
from infeng_simulate.fleet import Fleet, Requests, Run, draw

from infeng_core.cli import main

SMALL = Fleet(replicas=40, slots=16, resident=16, adapters=2000, zipf=0.9, load=0.6, duration=4.0, load_seconds=0.05)


def run(fleet: Fleet, route: str, count: int = 8000) -> dict[str, Any]:
    return Run(fleet, draw(fleet, count, 1), ROUTES[route](1)).figures()


def simulated(*words: str) -> dict[str, Any]:
    path = Path(words[-1])
    assert main(["bench", "simulate", *words[:-1], "--json", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(result, schema())
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("zipf", "loads"), [("0.9", 0.36), ("1.3", 0.08)])
def test_two_hundred_replicas_load_few_adapters_and_let_nobody_wait(zipf: str, loads: float, tmp_path: Path):
    words = ["--replicas", "200", "--adapters", "10000", "--zipf", zipf, "--requests", "40000", "--route", "rendezvous"]
    [found] = simulated(*words, str(tmp_path / "out.json"))["routes"].values()
    assert found["loads_per_request"] <= loads and found["wait_p99_s"] == 0
    assert found["highest_load"] < 1.5  # 1.25 rounded up to a whole call, at means of 5 and more
    assert found["remapped"] == pytest.approx(1 / 200)


def test_each_router_trades_loads_for_waiting(tmp_path: Path):
    words = ["--replicas", "40", "--adapters", "2000", "--requests", "8000", "--seed", "3"]
    routes = simulated(*words, str(tmp_path / "out.json"))["routes"]
    assert list(routes) == list(ROUTES)
    assert routes["hash"]["wait_p99_s"] > 10 * (routes["random"]["wait_p99_s"] + 0.1)
    assert routes["rendezvous"]["wait_p99_s"] == routes["power-of-two"]["wait_p99_s"] == 0
    assert routes["hash"]["loads_per_request"] < routes["rendezvous"]["loads_per_request"] < 0.5
    assert routes["power-of-two"]["loads_per_request"] > 0.8 < routes["random"]["loads_per_request"]
    assert routes["rendezvous"]["remapped"] == pytest.approx(1 / 40) == routes["hash"]["remapped"]
    assert routes["power-of-two"]["remapped"] > 0.5


def test_the_same_seed_gives_the_same_figures():
    assert run(SMALL, "power-of-two", 2000) == run(SMALL, "power-of-two", 2000)


def test_a_hot_adapter_is_on_some_replicas_and_not_on_all():
    hot = Fleet(**{**vars(SMALL), "zipf": 1.6})
    found = run(hot, "rendezvous")
    assert 10 < found["hottest_replicas"] < 40 and found["wait_p99_s"] == 0
    assert run(hot, "hash")["hottest_replicas"] == 1


@pytest.mark.slow
def test_prompts_that_begin_alike_meet_where_their_beginning_is_cached():
    base = Fleet(**{**vars(SMALL), "base": 1.0, "prefixes": 2000})
    assert run(base, "rendezvous")["prefix_hits"] > 0.55 > 0.3 > run(base, "power-of-two")["prefix_hits"]
    assert run(base, "rendezvous")["loads_per_request"] is None
    mixed = run(Fleet(**{**vars(SMALL), "base": 0.5, "prefixes": 100}), "rendezvous")
    assert mixed["prefix_hits"] > 0.8 and mixed["loads_per_request"] < 0.5


def test_a_request_waits_for_a_slot_and_its_adapter_delays_the_next():
    fleet = Fleet(replicas=1, slots=1, resident=1, adapters=2, zipf=0.0, load=1.0, duration=1.0, load_seconds=0.5)
    at, seconds = np.array([0.0, 0.0, 0.0, 9.0]), np.ones(4)
    found = Run(fleet, Requests(at, seconds, np.array([0, 0, 1, 1])), Rendezvous()).figures()
    assert found["loads_per_request"] == pytest.approx(1 / 3)  # of the last three, the third
    assert found["wait_max_s"] == pytest.approx(2.5) and found["wait_mean_s"] == pytest.approx((1.5 + 2.5 + 0) / 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas", "5", "--route", "rendevous"], "did you mean `rendezvous`"),
        (["--replicas", "20000"], "more than 10000 replicas"),
        (["--replicas", "-1"], "--replicas"),
    ],
)
def test_wrong_options_are_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) if words[1] == "-1" else pytest.MonkeyPatch.context():
        assert main(["bench", "simulate", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_the_wheel_of_the_routers_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "infeng_ray.router", None)
    assert main(["bench", "simulate", "--replicas", "3"]) == 2
    assert "install the wheel infeng-ray" in capsys.readouterr().err


def test_a_page_shows_every_router(tmp_path: Path):
    pytest.importorskip("infeng_report")
    page, again, result = tmp_path / "page.html", tmp_path / "again.html", tmp_path / "r.json"
    words = ["--replicas", "3", "--adapters", "50", "--requests", "200", "--json", str(result), "-o", str(page)]
    assert main(["bench", "simulate", *words]) == 0
    assert main(["bench", "report", str(result), "-o", str(again)]) == 0
    for text in (page.read_text(encoding="utf-8"), again.read_text(encoding="utf-8")):
        assert "In the simulation of 3 servers, 99% of the requests wait for at most" in text
        assert all(name in text for name in ("rendezvous", "power-of-two", "Loads of adapters for each request"))


@pytest.mark.parametrize("word", ["nan", "-1", "inf"])
def test_what_is_no_load_and_no_exponent_is_refused(word: str, capsys: pytest.CaptureFixture[str]):
    for option in ("--zipf", "--offered"):
        with pytest.raises(SystemExit):
            main(["bench", "simulate", "--replicas", "3", "--requests", "10", option, word])
        assert "requests a second" not in capsys.readouterr().err
