"""The loop that peers serve requests with: who is admitted, and who takes a step with whom."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from infeng_peers import known

PATH = Path(known.__file__).with_name("slots.py")
SPEC = importlib.util.spec_from_file_location("slots", PATH)
assert SPEC is not None and SPEC.loader is not None
slots: Any = importlib.util.module_from_spec(SPEC)  # as serve.py reads it
SPEC.loader.exec_module(slots)


class Engine:
    """Gives each sequence the tokens 0, 1, 2, ...; notes which adapters took a step together."""

    def __init__(self, mixes: bool) -> None:
        self.mixes = mixes
        self.steps: list[list[str | None]] = []
        self.adapters: dict[int, str | None] = {}
        self.given: dict[int, int] = {}
        self.most = 0

    def open(self, kind: str, slots: int, positions: int) -> None:
        assert kind == "serve"
        self.size = slots, positions

    def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
        assert slot not in self.adapters
        self.adapters[slot] = adapter
        self.given[slot] = 0
        self.most = max(self.most, len(self.adapters))

    def advance(self, group: list[int]) -> list[tuple[int, int]]:
        self.steps.append([self.adapters[slot] for slot in group])
        produced = [(slot, self.given[slot]) for slot in group]
        for slot in group:
            self.given[slot] += 1
        return produced

    def release(self, slot: int) -> None:
        del self.adapters[slot]


def requests(adapters: str, new: int = 2, at: float = 0.0) -> list[dict[str, Any]]:
    """Return a request for each letter; "." is the base."""
    named = [None if letter == "." else letter for letter in adapters]
    return [{"at": at, "prompt": [1, 2, 3], "new": new, "adapter": name} for name in named]


def steps(engine: Engine) -> str:
    return " ".join("".join(name or "." for name in step) for step in engine.steps)


def test_every_request_gets_its_tokens_and_at_most_the_slots_are_in_flight() -> None:
    engine = Engine(mixes=True)
    answer = slots.serve(engine, requests("ab.ab", new=3), 2, "rotate")
    assert [one["ids"] for one in answer["requests"]] == [[0, 1, 2]] * 5
    assert all(one["times"] == sorted(one["times"]) and len(one["times"]) == 3 for one in answer["requests"])
    assert engine.most == 2
    assert engine.size == (2, 7)
    assert answer["tokens_per_s"] == pytest.approx(15 / answer["seconds"])
    assert answer["peak_rss_bytes"] > 1 << 20
    assert not engine.adapters


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("rotate", "aa b aa b"),  # a, b, a in flight; each adapter in turn
        ("drain", "aa aa b b"),
        ("sort", "aa aa b b"),
    ],
)
def test_an_engine_that_cannot_mix_gets_one_adapter_at_a_time(rule: str, said: str) -> None:
    engine = Engine(mixes=False)
    slots.serve(engine, requests("aba"), 3, rule)
    assert steps(engine) == said


def test_a_sorted_queue_prefers_requests_of_the_running_adapter() -> None:
    engine = Engine(mixes=False)
    slots.serve(engine, requests("abababab", new=1), 2, "sort")
    assert steps(engine) == "aa aa bb bb"
    engine = Engine(mixes=False)
    slots.serve(engine, [*requests("ab", new=1), *requests("a", new=1, at=0.05)], 2, "sort")
    assert steps(engine) == "a b a"  # what has not come in is not known


def test_an_engine_that_can_mix_steps_all_adapters_together() -> None:
    engine = Engine(mixes=True)
    slots.serve(engine, requests("ab."), 3, "rotate")
    assert steps(engine) == "ab. ab."


def test_a_request_waits_for_its_arrival_time() -> None:
    engine = Engine(mixes=True)
    answer = slots.serve(engine, [*requests("a", new=1), *requests("b", new=1, at=0.05)], 2, "rotate")
    first, second = answer["requests"]
    assert first["admitted"] < 0.05 <= second["admitted"]
    assert steps(engine) == "a b"


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="none of rotate, drain, sort"):
        slots.serve(Engine(mixes=True), requests("a"), 1, "rota")
