"""The workers that the host lends to WHOLE kernels, kernels that prepare for a number of rows, weights at `create`."""

import threading

import numpy as np
import pytest

from infeng_core import _native

from . import tiny


@pytest.fixture(scope="module", name="team")
def fixture_team(build):
    return {kernel.name: kernel for kernel in _native.open_library(str(build("team.c"))).kernels}


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("pinned", [False, True])
def test_every_part_runs_once_on_some_worker_with_its_own_memory(team, steps, threads, pinned):
    pool = _native.Pool(threads, pin=pinned)
    program = steps(pool, team["in_parts"], rows=30, columns=16)
    program.program.view(program.buffers[0])[:] = np.arange(30)[:, None]
    for rows in (30, 1, 7):  # again and again, with other numbers of parts
        found = program.run(rows)
        assert set(found[:, 0]) <= set(range(threads))
        assert found[:, 1:3].all()
        assert np.array_equal(found[:, 3], 3.0 * np.arange(rows))
        assert found[0, 4] >= 1 and found[0, 5] in pool.cpus
    if threads > 1:
        assert len(set(program.run(30)[:, 0])) > 1, "no part ran on another worker"


def test_parts_run_between_ops_of_tiles(team, toy, steps):
    program = steps(_native.Pool(3), toy["add_one"], team["in_parts"], toy["add_one"], team["alone"], rows=40)
    program.program.view(program.buffers[0])[:] = 2
    for _ in range(20):
        assert program.run()[:, 0].all()
        assert (program.program.view(program.buffers[3])[:, 3] == 10).all()


def test_the_first_part_that_fails_ends_the_call_with_its_message(team, steps, expect):
    program = steps(_native.Pool(4), team["fails_in_parts"], rows=40, columns=16)
    program.program.view(program.buffers[0])[:] = 1
    for _ in range(3):
        with expect("not_finite", "team/fails_in_parts): status 5 (not_finite): row 20 or a later one"):
            program.run()
    assert (program.program.view(program.buffers[1])[:20, 3] == 3).all(), "parts that began before it end"


def test_a_cancelled_step_tells_the_kernel(team, steps, expect):
    program = steps(_native.Pool(2), team["until_cancelled"], rows=4, columns=16)
    timer = threading.Timer(0.1, program.program.cancel)
    timer.start()
    with expect("cancelled"):
        program.run()
    timer.join()


def linear(kernel, rows):
    """Return a program of one linear, and its result."""
    weight = tiny.Tiny.pack("f32", np.ones((16, 64), np.float32))
    program = _native.Program(_native.Pool(2), max_rows=rows, max_samples=0, max_segments=1, context=4)
    x, y = program.buffer(64), program.buffer(16)
    program.linear([(rows, kernel)], weight, x, y)
    program.finish()
    return program, program.view(y)


def run(program, rows):
    none = np.zeros(0, np.int32)
    program.run(np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros((0, 4), np.int32), none, none)


def test_create_sees_the_weight_in_the_kernel_s_layout(team, steps):
    program, out = linear(team["state"], 4)
    run(program, 1)
    assert out[0, :2].tolist() == [1, 5]
    assert steps(_native.Pool(1), team["weightless"], rows=1, columns=16).run()[0, 0] == 1


def test_prepare_is_called_when_the_number_of_rows_changes(team, expect):
    program, out = linear(team["state"], 16)
    seen = []
    for rows in (3, 3, 1, 1, 3, 16):
        run(program, rows)
        seen.append(tuple(out[0, 2:4].astype(int)))
    assert seen == [(3, 1), (3, 1), (1, 2), (1, 2), (3, 3), (16, 4)]
    with expect("unimplemented", "team/state): status 1 (unimplemented): no code for 13 rows"):
        run(program, 13)
    run(program, 16)
    assert tuple(out[0, 2:4].astype(int)) == (16, 5), "after a failure it prepares again"


def test_bounds_of_approximate_kernels_are_those_that_they_state(team, toy):
    assert team["state"].bound == 2.0**-7
    assert team["weightless"].bound == 2.0**-5
    assert team["in_parts"].bound == toy["add_one"].bound == 0.0
