"""Short calls that Ctrl-C ends at random moments, and what an engine can do afterwards: a program of its own.

Usage: interrupted.py MODEL ADAPTER TIMES [processors]. Ends once it was interrupted so often.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import sys
import threading
import time
from dataclasses import replace

from infeng_core import Engine, SamplingParams
from infeng_core.engine.step_lock import StepLock
from infeng_core.errors import InfengError

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, stop=("never there",))
PROCESSED = replace(GREEDY, presence_penalty=0.5, logit_bias={5: 1.0}, min_tokens=4, stop_token_ids=(7, 9))
PROMPTS = ["the quick brown fox", "a", "lazy"]
ADAPTERS = [None, "x", None]


def interrupt(*_: object) -> None:
    """Do what Ctrl-C does."""
    raise KeyboardInterrupt


def main(model: str, adapter: str, times: int, params: SamplingParams) -> None:
    """Interrupt, compare, close."""
    faulthandler.dump_traceback_later(100 + times, exit=True)  # a hang says where it is
    before = sys.getswitchinterval()
    engine = Engine(model, threads=1, speculate="ngram:2", adapters={"x": adapter})
    expected = [answer.token_ids for answer in engine.generate(PROMPTS, params, adapters=ADAPTERS)]
    begin = time.perf_counter()
    check(engine, params, expected)
    longest = time.perf_counter() - begin  # of a call for which nothing is to be prepared any more

    def call(kind: int) -> None:
        if kind == 0:
            engine.generate(PROMPTS, params, adapters=ADAPTERS)
        elif kind == 1:
            for event in engine.stream(PROMPTS, params, adapters=ADAPTERS):
                if len(event.text) > 1000:
                    break
        else:
            stream = engine.submit(PROMPTS[0], params)
            engine.step()
            stream.cancel()
            stream.result()

    drawn = random.Random(5)
    signal.signal(signal.SIGALRM, interrupt)
    interrupts = calls = 0
    while interrupts < times:
        calls += 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, drawn.uniform(0.00002, longest))
                call(calls % 3)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        if calls % 20 == 0:
            check(engine, params, expected)
    check(engine, params, expected)
    thread = threading.Thread(target=check, args=(engine, params, expected), daemon=True)
    thread.start()
    thread.join(30)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
    assert not thread.is_alive(), "another thread waits for ever"
    gc.collect()
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    assert sum(info.references + info.waiting for info in engine.adapters.infos()) == 0
    while engine._lifetime.is_open or not engine._lifetime.is_released:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, drawn.uniform(0.00001, 0.0002))
                engine.close()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
    StepLock().run(gc.collect)  # any turn repairs the state after an interrupt
    assert sys.getswitchinterval() == before


def check(engine: Engine, params: SamplingParams, expected: list[tuple[int, ...]]) -> None:
    """Compare the engine's answers with what they were at first."""
    try:
        found = [answer.token_ids for answer in engine.generate(PROMPTS, params, adapters=ADAPTERS)]
    except InfengError as error:
        raise AssertionError(f"the engine fails: {error}") from error
    assert found == expected, (found, expected)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), PROCESSED if sys.argv[4:] else GREEDY)
