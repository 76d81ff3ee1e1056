"""A program's measurements of its own steps: sums, workers, events, and nothing unless enabled."""

import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
parts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parts)

TABLE = [5, 0, 9]


@pytest.fixture
def tiny(reference):
    """Return a function that makes a profiled layer: int4 weights, int8 cache."""

    def make(threads=2, **options):
        layer = parts.Tiny(_native.Pool(threads), reference, "int4-g64", "int8")
        layer.program.profile(True, **options)
        return layer

    return make


def by_op(layer, field):
    """Return {op: sum of a field of its phases}."""
    reading, ops, sums = layer.program.profile_read(), layer.program.ops(), {}
    for phase in reading.phases:
        name = ops[phase["op"]].op
        sums[name] = sums.get(name, 0) + int(phase[field])
    return sums


def adds_up(reading):
    """Return whether the parts of the steps are the steps, up to the rounding of each to a nanosecond."""
    parts = reading.head_ns + reading.phases["wall_ns"].sum() + reading.tail_ns
    return abs(parts - reading.step_ns) <= len(reading.phases) + 3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_walls_head_and_tail_add_up_to_the_steps(tiny, threads):
    layer = tiny(threads)
    began = time.perf_counter_ns()
    for _ in range(5):
        layer.run((range(30), 0, TABLE))
    layer.run(([3], 30, TABLE))
    elapsed = time.perf_counter_ns() - began
    reading = layer.program.profile_read()
    assert (reading.steps, reading.rows) == (6, 151)
    assert adds_up(reading)
    assert 0 < reading.step_ns < elapsed
    assert set(by_op(layer, "calls")) == {op.op for op in layer.program.ops()}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_workers_tiles_are_the_phases_tiles_and_none_is_busier_than_the_phase_is_long(tiny, threads):
    layer = tiny(threads)
    for _ in range(5):
        layer.run((range(30), 0, TABLE))
    reading = layer.program.profile_read()
    phases, workers = reading.phases, reading.workers
    assert workers.shape == (len(phases), threads)
    assert np.array_equal(workers["tiles"].sum(1), phases["tiles"])
    slack = 100 * phases["calls"][:, None]  # counters of two cores may differ by some nanoseconds
    assert (workers["busy_ns"] + workers["late_ns"] <= phases["wall_ns"][:, None] + slack).all()
    assert (workers["busy_ns"].sum(1) > 0).all()


def test_products_and_bytes_are_those_of_the_shapes(tiny):
    layer = tiny()
    layer.run((range(30), 0, TABLE), samples=[29])
    layer.run(([3], 30, TABLE))
    inner = sum(
        n * (2 * parts.HIDDEN if name == "down" else parts.HIDDEN)
        for name, n in parts.LINEARS.items()
        if name not in ("embed", "head")
    )
    seen = sum(range(1, 31)) + 31  # tokens that each row sees
    macs = by_op(layer, "macs")
    assert macs["linear"] == 31 * inner + 2 * parts.LINEARS["head"] * parts.HIDDEN
    assert macs["attention"] == 2 * parts.HEADS * parts.HEAD_DIM * seen
    sizes = by_op(layer, "bytes")
    per_token = layer.cache.block_bytes // 16
    assert sizes["kv_append"] == 31 * per_token
    assert sizes["attention"] == (30 + 31) * per_token
    weights = sum(
        -(-n // 16) * _native.panel_bytes("int4-g64", 2 * parts.HIDDEN if name == "down" else parts.HIDDEN)
        for name, n in parts.LINEARS.items()
        if name != "embed"
    )
    assert sizes["linear"] == 2 * weights
    assert (macs["rmsnorm"], sizes["rope"]) == (0, 0)


def test_a_window_bounds_what_attention_is_counted_for(reference):
    program = _native.Program(_native.Pool(1), max_rows=8, max_samples=8, max_segments=1, context=96)
    cache = _native.KvCache("f32", layers=1, blocks=6, kv_heads=1, head_dim=16)
    x, out = program.buffer(32), program.buffer(32)
    program.attention([(8, reference["attention_f32"])], x, cache, 0, out, heads=2, window=10, scale=1.0)
    program.finish()
    program.profile(True)
    integers = [np.array(values, np.int32) for values in ([0] * 4, [20, 21, 22, 23], [[0, 4, 20, 0]], [0, 1], [3])]
    program.run(*integers)
    [phase] = [phase for phase in program.profile_read().phases if phase["phase"] == 0]
    assert phase["macs"] == 2 * 2 * 16 * 4 * 10
    assert phase["bytes"] == 13 * cache.block_bytes // 16  # positions 11 to 23


def test_each_kernel_of_an_op_is_counted_apart(toy):
    program = _native.Program(_native.Pool(2), max_rows=64, max_samples=1, max_segments=1, context=64)
    x, y = program.buffer(4096), program.buffer(4096)
    program.epilogue([(4, toy["add_one"]), (64, toy["total"])], x, 4096, y, [])
    program.finish()
    program.profile(True)
    none = np.zeros(0, np.int32)
    for rows in (3, 40, 4):
        program.run(np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32), none.reshape(0, 4), none, none)
    phases = program.profile_read().phases
    assert program.ops() == [("epilogue", [], [(4, "toy/add_one"), (64, "toy/total")])]
    assert [(p["kernel"], p["phase"], p["calls"], p["rows"]) for p in phases] == [
        (0, 0, 2, 7), (1, 0, 1, 40), (1, 1, 1, 40)
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_events_are_in_order_on_each_worker_and_within_the_run(tiny, threads):
    layer = tiny(threads)
    began = time.perf_counter_ns()
    for _ in range(3):
        layer.run((range(30), 0, TABLE))
    ended = time.perf_counter_ns()
    reading = layer.program.profile_read()
    assert len(reading.events) == threads
    for events in reading.events:
        assert (events["end_ns"] >= events["begin_ns"]).all()
        assert (events["begin_ns"][1:] >= events["end_ns"][:-1]).all()
        assert (np.diff(events["step"]) >= 0).all()
        if len(events):
            assert began - 1000 <= events["begin_ns"][0]
            assert events["end_ns"][-1] <= ended + 1000
    both = np.concatenate(reading.events)
    assert set(both["step"]) == {0, 1, 2}
    assert both["tiles"].sum() == reading.phases["tiles"].sum()
    assert set(both["op"]) == set(range(layer.program.op_count()))


def test_ops_of_a_group_share_their_totals_and_keep_their_events(toy, steps, expect):
    chain = steps(_native.Pool(2), *[toy["add_one"]] * 4)
    chain.program.profile(True, groups=[0, 1, 0, 1])
    chain.run()
    reading = chain.program.profile_read()
    phases = reading.phases
    assert [(p["op"], p["calls"], p["rows"]) for p in phases] == [(0, 2, 128), (1, 2, 128)]
    assert adds_up(reading)
    assert set(np.concatenate(reading.events)["op"]) == {0, 1, 2, 3}
    for groups, what in (
        ([0, 1], "2 groups for 4 ops"),
        ([0, 2, 2, 3], r"groups[1] is 2"),
        ([0, 0, 1, 1], r"groups[2] is 1"),
        ([-1, 1, 2, 3], r"groups[0] is -1"),
    ):
        with expect("invalid_argument", what):
            chain.program.profile(True, groups=groups)


def test_ops_with_different_numbers_of_kernels_are_no_group(toy, expect):
    program = _native.Program(_native.Pool(1), max_rows=64, max_samples=1, max_segments=1, context=64)
    x, y = program.buffer(4096), program.buffer(4096)
    program.epilogue([(4, toy["add_one"]), (64, toy["total"])], x, 4096, y, [])
    program.epilogue([(64, toy["add_one"])], x, 4096, y, [])
    program.finish()
    with expect("invalid_argument", "groups[1] is 0"):
        program.profile(True, groups=[0, 0])


def test_only_the_latest_events_are_kept(tiny):
    whole, few = tiny(threads=1), tiny(threads=1, events=10)
    for layer in (whole, few):
        for _ in range(3):
            layer.run((range(30), 0, TABLE))
    [all_events], [kept] = (layer.program.profile_read().events for layer in (whole, few))
    assert kept[["step", "op", "phase"]].tolist() == all_events[["step", "op", "phase"]].tolist()[-10:]
    none = tiny(events=0)
    none.run((range(30), 0, TABLE))
    assert [len(events) for events in none.program.profile_read().events] == [0, 0]
    assert none.program.profile_read().phases["calls"].sum() > 0


def test_a_slow_worker_shows_as_waiting_of_the_others(toy, steps):
    chain = steps(_native.Pool(2), toy["show_worker"], rows=5)  # 5 tiles of a millisecond each
    chain.program.profile(True)
    chain.run()
    reading = chain.program.profile_read()
    [phase], [workers] = reading.phases, reading.workers
    assert workers["busy_ns"].max() >= 2_000_000
    assert phase["wall_ns"] >= workers["busy_ns"].max()


def test_profiling_changes_no_byte_of_the_result(reference):
    layers = [parts.Tiny(_native.Pool(2), reference, "int4-g64", "int8") for _ in range(2)]
    layers[1].program.profile(True)
    plain, measured = (layer.run((range(30), 0, TABLE)) for layer in layers)
    assert plain.tobytes() == measured.tobytes()


def test_a_new_profile_starts_from_zero_and_none_can_be_read_when_off(tiny, expect):
    layer = tiny()
    layer.run((range(30), 0, TABLE))
    layer.program.profile(True)
    reading = layer.program.profile_read()
    assert (reading.steps, len(reading.phases), len(reading.events[0])) == (0, 0, 0)
    layer.program.profile(False)
    layer.run((range(30), 0, TABLE))
    with expect("not_profiled", "profile(True)"):
        layer.program.profile_read()


def test_a_refused_batch_and_a_failing_step_leave_sums_that_add_up(toy, steps, expect):
    chain = steps(_native.Pool(2), toy["add_one"], toy["fail_last_row"], toy["add_one"])
    chain.program.profile(True)
    with expect("invalid_argument"):
        chain.run(65)
    assert chain.program.profile_read().steps == 0
    with expect("not_finite"):
        chain.run()
    reading = chain.program.profile_read()
    phases = reading.phases
    assert (reading.steps, set(phases["op"])) == (1, {0, 1})
    assert adds_up(reading)


def test_a_profile_can_be_read_and_restarted_while_another_thread_runs_steps(tiny):
    layer, done = tiny(), threading.Event()

    def run():
        while not done.is_set():
            layer.run((range(30), 0, TABLE))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(20):
            reading = layer.program.profile_read()
            assert adds_up(reading)
            layer.program.profile(True, events=100)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(("events", "what"), [(-1, "events is 0 to"), (1 << 40, "events is 0 to")])
def test_impossible_numbers_of_events_are_refused(tiny, expect, events, what):
    with expect("invalid_argument", what):
        tiny(events=events)


def test_a_program_must_be_finished_first(expect):
    program = _native.Program(_native.Pool(1), max_rows=8, max_samples=8, max_segments=1, context=96)
    with expect("not_finished"):
        program.profile(True)


def test_no_clock_is_read_when_off_and_few_when_on(build):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the counter stands before glibc's clock_gettime")
    counter = build("count_clock.c")
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("count_readings.py"), counter, build("toy.c")],
        env={**os.environ, "LD_PRELOAD": str(counter)},
        check=True,
        capture_output=True,
    )
    counts = json.loads(done.stdout)
    assert counts["off 1"] == counts["off 2"] == 0
    assert counts["on 1"] <= 3 * 100 + 3
    assert counts["on 2"] <= 5 * 100 + 3


@pytest.mark.parametrize(("state", "status"), [("off", 0), ("on", -signal.SIGSEGV)])
def test_the_processor_s_counter_is_read_only_when_on(build, state, status):
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("only Linux on x86-64 lets a thread forbid itself to read the counter")
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("forbid_counter.py"), build("toy.c"), state], check=False
    )
    assert done.returncode == status
