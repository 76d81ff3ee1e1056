"""A scheduler may take a sequence's blocks and adapters away and start it again later: its bytes stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core import SamplingParams
from infeng_core.errors import AdapterError
from infeng_core.scheduling.fcfs import FirstCome

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, logprobs=1)


class Preempting(FirstCome):
    """Sends the sequence that was admitted last back to the queue at every third step."""

    steps = 0
    preempted = 0

    def next_batch(self) -> Any:
        """Preempt, then go on as usual."""
        self.steps += 1
        if self.steps % 3 == 0 and len(self._running) > 1:
            self.preempt(self._running[-1])
        return super().next_batch()

    def preempt(self, sequence: Any) -> None:
        """Give up all that a sequence holds."""
        self.preempted += 1
        self._running.remove(sequence)
        self._grouped.remove(sequence)
        self._pool.release(sequence.blocks)
        if sequence.adapters is not None:
            sequence.adapters.release()
            self._ends, self._adapters = [], []
        sequence.restart(sequence.tokens[sequence.prompt_length : sequence.length].tolist())
        self._waiting.add(sequence)


@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_preempted_sequences_give_the_same_tokens(make_engine: MakeEngine, tmp_path: Path, speculate: str):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("abc")}
    engine = make_engine(adapters__paths=paths, adapters__max_resident=2, speculation__use=speculate)
    prompts: list[Any] = [[5] * 20, [6, 7, 6, 7, 6], "the quick", [9] * 30]
    names = ["a", "b", None, "c"]
    for params in (GREEDY, SAMPLED):
        expected = [engine.generate([p], params, adapters=n)[0] for p, n in zip(prompts, names, strict=True)]
        scheduler = engine._in_flight.scheduler = Preempting(engine.limits, engine._in_flight.pool)
        found = engine.generate(prompts, params, adapters=names)
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        assert [one.logprobs for one in found] == [one.logprobs for one in expected]
        assert scheduler.preempted >= 2
        assert engine._in_flight.pool.free == engine._in_flight.pool.total
        assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())


def test_an_adapter_that_changes_while_its_request_is_preempted_is_an_error_of_that_request(
    make_engine: MakeEngine, tmp_path: Path
):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    engine = make_engine(adapters__paths=paths, adapters__max_resident=1)
    engine._in_flight.scheduler = scheduler = Preempting(engine.limits, engine._in_flight.pool)
    stream = engine.submit("x", replace(GREEDY, max_tokens=100), adapter="a")
    while not stream.is_ready:
        engine.step()
    scheduler.preempt(scheduler._running[0])
    engine.adapters.pin("b")  # which takes the only place
    tiny_adapter.write(tmp_path / "a", 9)
    engine.adapters.pin("b", False)
    with pytest.raises(AdapterError, match="adapter a"):
        stream.result()
    assert len(engine.generate("x", GREEDY, adapters="b")[0].token_ids) == 24
    assert engine._in_flight.pool.free == engine._in_flight.pool.total
