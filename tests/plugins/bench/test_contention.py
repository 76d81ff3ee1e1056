"""What a result says of a busy machine: waits that were counted, and ratios that are not shown."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from infeng_bench import options
from infeng_bench.engine.work import Work
from infeng_bench.reports import results
from infeng_bench.stats import contention
from infeng_bench.stats.contention import Mark, Waits, judged
from infeng_peers import comparison
from infeng_peers.comparison import Round
from infeng_peers.process import EngineProcess
from infeng_peers.verbs.compare import show
from report_parts import COMMON, TOLD

from infeng_core.cli import main

QUIET, BUSY = Waits(ran=0.99, waited=0.01), Waits(ran=0.66, waited=0.34)


class Machine:
    """A /proc of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def says(self, threads: dict[int, tuple[int, int]], steal: int = 0, pressure: int = 0) -> None:
        """Write what the system tells of process 7."""
        for thread, (ran, waited) in threads.items():
            place = self.folder / "7" / "task" / str(thread)
            place.mkdir(parents=True, exist_ok=True)
            (place / "schedstat").write_text(f"{ran} {waited} 12\n")
        (self.folder / "stat").write_text(f"cpu  100 0 0 {100 - steal} 0 0 0 {steal} 0 0\ncpu0 1\n")
        (self.folder / "pressure").mkdir(exist_ok=True)
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure}\nfull avg10=0.00 total=9\n"
        (self.folder / "pressure" / "cpu").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(contention, "PROC", tmp_path)
    return Machine(tmp_path)


def test_waits_include_every_thread_even_new_ones(machine: Machine) -> None:
    machine.says({7: (1_000_000_000, 5_000_000_000), 8: (0, 0)}, steal=0)
    mark = Mark.now(7)
    machine.says({7: (2_000_000_000, 5_500_000_000), 8: (1_000_000_000, 0), 9: (1_000_000_000, 500_000_000)}, steal=20)
    waits = mark.waits()
    assert (waits.ran, waits.waited) == (pytest.approx(3.0), pytest.approx(1.0))
    assert waits.share == pytest.approx(0.25)
    assert waits.stolen == 0  # as many ticks in all as before


def test_stolen_time_is_a_share_of_all_processors(machine: Machine) -> None:
    machine.says({})
    mark = Mark.now(7)
    (machine.folder / "stat").write_text("cpu  130 0 0 160 0 0 0 10 0 0\n")
    assert mark.waits().stolen == pytest.approx(0.1)


def test_a_system_without_wait_statistics_reports_no_waits(machine: Machine) -> None:
    assert Mark.now(7).waits() == Waits()
    assert Waits().share == 0
    (machine.folder / "stat").write_text("cpu x")
    assert contention.steal_time() == (0, 0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system counts no waits")
def test_waits_of_two_processes_on_one_core_are_detected(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    work = tmp_path / "spinning.py"
    work.write_text(
        f"import json, os, sys, time\nos.sched_setaffinity(0, [{core}])\n"
        "print(json.dumps({'ready': True, 'details': {}}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    if os.fork() == 0:\n"
        "        end = time.process_time() + 0.5\n"
        "        while time.process_time() < end: pass\n"
        "        os._exit(0)\n"
        "    end = time.process_time() + 0.2\n"
        "    while time.process_time() < end: pass\n"
        "    os.wait()\n"
        "    print(json.dumps({'tokens_per_s': 1.0, 'tokens': 32, 'prefill_seconds': 1.0}), flush=True)\n"
    )
    engine = EngineProcess("fake", [sys.executable, str(work)], tmp_path / "log", 60.0)
    try:
        engine.ready()
        engine.measure(Work("decode", 1, 8), 0)
        assert engine.waits.share > contention.MOST_WAITED
    finally:
        engine.close()


def test_a_ratio_is_shown_without_waits() -> None:
    found = judged({"infeng": [QUIET] * 5, "peer": [QUIET] * 5}, {"peer": (2.0, 1.9)})
    assert found["is_quiet"] and "withheld" not in found
    assert found["wait_share"]["peer"]["median"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("waits", "ratios", "text"),
    [
        ({"infeng": [QUIET] * 3, "peer": [QUIET, BUSY, BUSY]}, {}, "peer's threads waited 34% of their time"),
        ({"infeng": [Waits(1.0, 0.0, stolen=0.2)] * 3}, {}, "the host gave 20% of the processors' time to others"),
        (
            {"infeng": [QUIET] * 3},
            {"peer": (73.68, 3.1)},
            "73.68 x peer is not borne out by pairs that bound it by 3.10",
        ),
    ],
)
def test_a_ratio_is_withheld_with_the_reason(waits: Any, ratios: Any, text: str) -> None:
    found = judged(waits, ratios)
    assert not found["is_quiet"]
    assert text in found["withheld"]


def compared(waits: Waits) -> dict[str, Any]:
    """Return a comparison in which the peer's threads waited."""
    rounds = [Round({"infeng": 50.0, "peer": 10.0}, {"infeng": 1.0, "peer": 1.0}, {"infeng": QUIET, "peer": waits})] * 5
    return comparison.compared(Work("decode"), rounds, {"infeng": {}, "peer": {}}, None)


def test_a_comparison_on_a_busy_machine_keeps_its_figures_and_shows_no_ratio(schema: Any) -> None:
    one = compared(BUSY)
    assert one["ratios"] == {"peer": 5.0} and one["contention"]["is_quiet"] is False
    shown = "\n".join(show([one], 1.0))
    assert "5.00 x" not in shown and "50.0 tokens/s" in shown
    assert "no ratio" in shown and "peer's threads waited 34%" in shown
    assert "infeng is 5.00 x" in "\n".join(show([compared(QUIET)], 1.0))
    work = one.pop("work")
    schema(results.record("compare", {**TOLD, **one}, work=work, **COMMON))


def test_every_verb_states_contention_below_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"measurements": [{"contention": judged({"infeng": [BUSY]})}, {}]}
    options.deliver(result, argparse.Namespace(json=None, csv=None, report=None), ["a table"])
    assert capsys.readouterr().out.splitlines()[1].startswith("withheld: infeng's threads waited 34%")


@pytest.mark.parametrize("verb", ["decode", "prefill", "lora-tax", "serve"])
def test_results_timed_in_this_process_include_its_waits(
    verb: str, tiny_config: Path, tmp_path: Path, schema: Any
) -> None:
    more = {
        "decode": ["--rounds", "1", "--context", "8", "--roofline", "none"],
        "prefill": ["--rounds", "1", "--context", "8", "--roofline", "none"],
        "lora-tax": ["--rows", "2", "--adapters", "1", "--rank", "2", "--context", "8", "--steps", "1", "--pairs", "2"],
        "serve": ["--load", "poisson:rate=inf,prompt=8,output=4", "--requests", "4", "--clients", "2"],
    }[verb]
    out = tmp_path / "out.json"
    assert main(["bench", verb, "--synthetic", str(tiny_config), "-t", "1", "--json", str(out), *more]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert 0 <= result["contention"]["wait_share"]["infeng"]["median"] <= 1
    assert result["contention"]["is_quiet"] == ("withheld" not in result["contention"])
