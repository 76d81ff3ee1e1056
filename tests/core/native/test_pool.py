"""The pool: workers, order, floating-point mode, and failures."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native


def tasks():
    """Return the folders of this process's threads."""
    return list(Path("/proc/self/task").iterdir())


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_tile_runs_exactly_once_per_op(toy, steps, threads):
    chain = steps(_native.Pool(threads), *[toy["add_one"]] * 40)
    chain.program.view(chain.buffers[0])[:] = np.arange(64, dtype=np.float32)[:, None]
    for rows in (64, 7, 1, 64):
        assert np.array_equal(chain.run(rows), np.arange(rows, dtype=np.float32)[:, None] + np.full((rows, 4096), 40))


def test_all_workers_take_tiles_and_worker_zero_is_the_caller(toy, steps):
    out = steps(_native.Pool(2), toy["show_worker"]).run()
    assert set(out[:, 0]) == {0, 1}
    assert set(out[out[:, 0] == 0, 1]) == {threading.get_native_id() % 10000000}
    assert np.array_equal(out[:, 2], np.arange(64))
    assert set(out[:, 4]) == {2}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_pool_times_its_own_barrier(threads, expect):
    pool = _native.Pool(threads)
    times = _native.barrier_times(pool, 100)
    assert (times.shape, times.dtype) == ((100,), np.int64)
    assert (times >= 0).all()
    for rounds in (0, 1 << 21):
        with expect("invalid_argument", "rounds is 1 to"):
            _native.barrier_times(pool, rounds)


def test_tensors_have_the_rows_of_the_step(toy, steps):
    chain = steps(_native.Pool(2), toy["show_worker"])
    assert set(chain.run(5)[:, 3]) == {5}
    assert set(chain.run(9)[:, 3]) == {9}


def test_a_whole_kernel_runs_on_worker_zero_between_tiled_ones(toy, steps):
    chain = steps(_native.Pool(3), toy["add_one"], toy["whole"], toy["add_one"], rows=12)
    for _ in range(5):
        out = chain.run()
        assert set(out[:, 0]) == {1}  # worker 0, plus one
        assert set(out[:, 1]) == {threading.get_native_id() % 10000000 + 1}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_phase_sees_all_writes_of_the_previous_phase(toy, steps, threads):
    chain = steps(_native.Pool(threads), toy["total"], rows=32)
    chain.program.view(chain.buffers[0])[:] = np.arange(32, dtype=np.float32)[:, None]
    for _ in range(10):
        assert set(chain.run()[:, 0]) == {float(sum(range(32)))}


def test_every_tile_starts_in_the_contract_s_mode_and_the_caller_s_is_put_back(toy, steps):
    chain = steps(_native.Pool(2), toy["show_mode"], toy["show_mode"], rows=32)
    for _ in range(3):
        assert set(chain.run()[:, 0]) == {0x1F80}
    assert np.float32(1e-40) * np.float32(1) != 0  # the kernel left flush-to-zero behind


def test_a_failing_tile_stops_the_run_and_names_op_kernel_and_row(toy, steps, expect):
    chain = steps(_native.Pool(2), toy["add_one"], toy["fail_last_row"], toy["add_one"])
    with expect("not_finite") as caught:
        chain.run()
    assert str(caught.value) == ("epilogue (op 1, kernel toy/fail_last_row): status 5 (not_finite): row 63 holds NaN")
    with expect("not_finite") as caught:
        chain.run(3)
    assert "row 2 holds NaN" in str(caught.value)


def test_a_message_of_an_earlier_step_is_not_repeated(toy, steps, expect):
    pool = _native.Pool(1)
    first, second = steps(pool, toy["fail_last_row"]), steps(pool, toy["fail_silently"])
    for chain, code in ((first, "not_finite"), (second, "out_of_range"), (first, "not_finite")):
        with expect(code) as caught:
            chain.run()
        assert ("row 63" in str(caught.value)) == (chain is first)


def test_a_negative_tile_count_is_an_error(toy, steps, expect):
    with expect("internal") as caught:
        steps(_native.Pool(2), toy["negative"]).run()
    assert "tile count is negative" in str(caught.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_throws_is_an_error_and_not_the_end_of_the_process(build, steps, expect, threads):
    library = _native.open_library(str(build("hostile.c", "-DCASE_RUN_THROWS", "-xc++", compiler="c++")))
    chain = steps(_native.Pool(threads), library.kernels[0])
    for _ in range(3):
        with expect("internal", "kernel hostile/plain): status 6 (internal): the kernel threw a C++ exception"):
            chain.run()


@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_stops_a_run_between_tiles(toy, steps, threads, expect):
    chain = steps(_native.Pool(threads), toy["slow"], rows=256, columns=256)  # 1.28 s on one thread
    done = chain.program.view(chain.buffers[-1])[:, 0]
    done[:] = 0

    def cancel():
        wait_for(done.any)
        chain.program.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with expect("cancelled"):
        chain.run()
    assert 0 < np.count_nonzero(done) < 256
    canceller.join()


def test_cancel_reaches_a_run_that_waits_for_the_pool(toy, steps):
    pool = _native.Pool(2)
    long, short = steps(pool, toy["slow"], rows=256, columns=256), steps(pool, toy["add_one"])
    ended = {}

    def run(name, chain):
        try:
            chain.run()
            ended[name] = "ran"
        except _native.NativeError as error:
            ended[name] = error.code

    begun = long.program.view(long.buffers[-1])[:, 0]
    begun[:] = 0
    runner = threading.Thread(target=run, args=("long", long))
    runner.start()
    assert wait_for(begun.any)
    waiters = [threading.Thread(target=run, args=(i, short)) for i in range(2)]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    assert not ended
    short.program.cancel()
    for waiter in waiters:
        waiter.join(timeout=10)
    assert ended == {0: "cancelled", 1: "cancelled"}, "the long run must not have ended, nor been stopped"
    runner.join(timeout=30)
    assert ended["long"] == "ran"
    assert set(short.run()[0]) == {1}


def test_cancel_without_a_run_does_nothing(toy, steps):
    chain = steps(_native.Pool(2), toy["add_one"])
    chain.program.cancel()
    assert set(chain.run()[0]) == {1}


def test_programs_of_one_pool_take_turns(toy, steps):
    pool = _native.Pool(2)
    chains = [steps(pool, *[toy["add_one"]] * 10, rows=16, columns=2048) for _ in range(4)]
    wrong = []

    def work(chain):
        wrong.extend(1 for _ in range(25) if not np.array_equal(chain.run(), np.full((16, 2048), 10)))

    workers = [threading.Thread(target=work, args=(chain,)) for chain in chains]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_pools_come_and_go(toy, steps):
    before = len(tasks())
    for _ in range(50):
        assert set(steps(_native.Pool(4), toy["add_one"], rows=4).run()[0]) == {1}
    assert len(tasks()) <= before


def test_libraries_enter_and_leave_every_thread_once(toy, steps):
    done = {}

    def one_pool():
        chain = steps(_native.Pool(3), toy["show_worker"], toy["show_threads"], rows=32)
        for _ in range(3):
            done["counts"] = chain.run()[0, :2].copy()

    before = steps(_native.Pool(1), toy["show_threads"], rows=1).run()[0, :2].copy()
    worker = threading.Thread(target=one_pool)
    worker.start()
    worker.join()
    assert done["counts"][0] == before[0] + 3
    counter = steps(_native.Pool(1), toy["show_threads"], rows=1)
    deadline = time.monotonic() + 5  # a thread ends a little after Python has joined it
    while counter.run()[0, 1] < before[1] + 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert counter.run()[0, :2].tolist() == [before[0] + 3, before[1] + 3]


def test_worker_threads_have_names(toy):
    pool = _native.Pool(3)
    assert {"infeng-1", "infeng-2"} <= affinity_of_workers().keys()
    assert pool.threads == 3


def test_workers_stay_inside_the_process_s_mask(toy, steps):
    mask = os.sched_getaffinity(0)
    one = {min(mask)}
    os.sched_setaffinity(0, one)
    try:
        pool = _native.Pool(2, pin=True)
        assert set(pool.cpus) == one
        assert set(steps(pool, toy["add_one"]).run()[0]) == {1}
    finally:
        os.sched_setaffinity(0, mask)


def test_pinning_leaves_the_caller_s_mask_alone(toy, steps):
    mask = os.sched_getaffinity(0)
    chain = steps(_native.Pool(2, pin=True), toy["show_worker"], rows=16)
    chain.run()
    assert os.sched_getaffinity(0) == mask


def affinity_of_workers():
    """Return the CPUs that each thread of the pools may use, by its name."""
    found = {}
    for task in tasks():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (name := (task / "comm").read_text().strip()).startswith("infeng-"):
                found[name] = os.sched_getaffinity(int(task.name))
    return found


def wait_for(condition):
    """Wait a moment for what other threads do first."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def test_pinned_workers_get_the_cpus_that_are_named_in_their_order(toy, steps):
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    pool = _native.Pool(len(cpus) + 1, pin=True, cpus=cpus)
    assert pool.cpus == [*cpus, cpus[0]]
    wanted = {f"infeng-{i}": {pool.cpus[i]} for i in range(1, pool.threads)}
    assert wait_for(lambda: affinity_of_workers() == wanted)
    assert set(steps(pool, toy["add_one"]).run()[0]) == {1}


def test_workers_that_are_not_pinned_share_the_cpus_that_are_named(toy, steps):
    mask = os.sched_getaffinity(0)
    pool = _native.Pool(3, cpus=[max(mask)])
    assert pool.cpus == [max(mask)]
    assert wait_for(lambda: affinity_of_workers() == {"infeng-1": {max(mask)}, "infeng-2": {max(mask)}})
    assert set(steps(pool, toy["add_one"]).run()[0]) == {1}
    assert os.sched_getaffinity(0) == mask


def test_cpus_that_do_not_exist_leave_workers_where_they_are(toy, steps, expect):
    with expect("invalid_argument", "there is no CPU -1"):
        _native.Pool(2, cpus=[-1])
    for cpu in (1000, 100000):
        assert set(steps(_native.Pool(2, cpus=[cpu], pin=True), toy["add_one"]).run()[0]) == {1}


def test_a_forked_child_gets_an_error_instead_of_a_hang(toy, steps):
    chain = steps(_native.Pool(2), toy["add_one"])
    chain.run()
    child = os.fork()
    if child == 0:
        code = "none"
        try:
            chain.run()
        except _native.NativeError as error:
            code = error.code
        del chain
        fresh = steps(_native.Pool(2), toy["add_one"]).run()  # a new pool works in the child
        os._exit(0 if code == "forked" and set(fresh[0]) == {1} else 1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert set(chain.run()[0]) == {1}


@pytest.mark.parametrize("threads", [0, -1, 100000])
def test_an_impossible_number_of_threads_is_an_error(threads, expect):
    with expect("invalid_argument"):
        _native.Pool(threads)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process has one niceness")
def test_workers_can_stand_behind_the_threads_of_the_process():
    before, own = set(tasks()), os.getpriority(os.PRIO_PROCESS, 0)
    pool = _native.Pool(3, nice=4)
    workers = [task for task in set(tasks()) - before if (task / "comm").read_text().startswith("infeng-")]
    wait_for(lambda: all(niceness(task) == min(19, own + 4) for task in workers))
    assert len(workers) == pool.threads - 1
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.parametrize("nice", [-1, 20])
def test_an_impossible_niceness_is_refused(nice, expect):
    with expect("invalid_argument", f"nice is 0 to 19, not {nice}"):
        _native.Pool(2, nice=nice)


def niceness(task):
    """Return the niceness of the thread whose folder in /proc is ``task``."""
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])
