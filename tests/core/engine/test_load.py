"""The load of an engine: present work, and counts that survive an interrupt."""

from __future__ import annotations

from dataclasses import replace

from engine_parts import MakeEngine, preempting

from infeng_core import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
LONG = [5 + i % 40 for i in range(50)]


def test_requests_count_as_waiting_from_their_submission_and_as_running_from_their_start(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_running=1)
    idle = engine.load()
    assert (idle.running, idle.waiting, idle.used_blocks, idle.wait_seconds) == (0, 0, 0, 0)
    streams = [engine.submit(LONG, GREEDY) for _ in range(3)]
    assert (engine.load().running, engine.load().waiting) == (0, 3)
    engine.step()
    busy = engine.load()
    assert (busy.running, busy.waiting, busy.blocks) == (1, 2, engine.limits.kv_blocks)
    assert busy.used_blocks == 4 == len(LONG) // 16 + 1
    for stream in streams:
        stream.result()
    assert (engine.load().running, engine.load().waiting, engine.load().used_blocks) == (0, 0, 0)


def test_tokens_found_in_the_cache_are_counted_once_for_each_request(make_engine: MakeEngine):
    engine = make_engine()
    for _ in range(3):
        engine.generate([LONG], GREEDY)
    load = engine.load()
    assert (load.prefix_queries, load.prefix_hits) == (150, 96)
    alone = make_engine(kv_cache__prefix=False)
    alone.generate([LONG] * 2, GREEDY)
    assert (alone.load().prefix_queries, alone.load().prefix_hits) == (0, 0)


def test_counts_go_on_with_the_next_scheduler_after_an_interrupt(make_engine: MakeEngine, monkeypatch):
    engine = make_engine()
    preempting(engine, monkeypatch)
    engine.generate([LONG] * 3, GREEDY)
    engine.generate([LONG], GREEDY)
    before, scheduler = engine.load(), engine.scheduler
    assert before.preemptions > 0 and before.prefix_hits > 0
    for _ in range(2):
        engine._in_flight.is_torn = True
        engine.generate([LONG], replace(GREEDY, max_tokens=1))
    after = engine.load()
    assert engine.scheduler is not scheduler
    found = (after.preemptions, after.prefix_queries, after.prefix_hits)
    assert found == (before.preemptions, before.prefix_queries + 100, before.prefix_hits)  # a new one knows no prefix


def test_an_adapter_reports_the_total_time_of_its_loads(make_engine: MakeEngine, tmp_path):
    import tiny_adapter

    engine = make_engine()
    engine.adapters.load("a", tiny_adapter.write(tmp_path / "a", 1))
    assert (engine.adapters["a"].loaded, engine.adapters["a"].total_load_seconds) == (0.0, 0.0)
    engine.adapters.pin("a")
    once = engine.adapters["a"]
    engine.adapters.reload("a")
    twice = engine.adapters["a"]
    assert twice.loads == 2 and twice.loaded > once.loaded > 0
    assert twice.total_load_seconds == once.total_load_seconds + twice.load_seconds > twice.load_seconds
