"""An engine that has warmed up takes no more memory, however long it serves."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from engine_parts import MakeEngine

from infeng_core import Engine, SamplingParams
from infeng_core.requests.stream import Stream

STEPS = 20_000
WARM = 4_000


class Memory(NamedTuple):
    """What an idle engine holds."""

    traced: int  # bytes that Python allocated
    objects: int
    resident: int  # bytes of the process


def held() -> Memory:
    """Return what is left after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Memory(tracemalloc.get_traced_memory()[0], len(gc.get_objects()), pages * os.sysconf("SC_PAGE_SIZE"))


class Load:
    """Requests that come and go: texts and ids, greedy and drawn, some stopped by a string, some cancelled."""

    def __init__(self, engine: Engine) -> None:
        """Put a load on ``engine``."""
        self._engine = engine
        self._random = np.random.default_rng(1)
        self._streams: deque[Stream] = deque()
        self.requests = 0

    def run(self, steps: int) -> None:
        """Run about ``steps`` steps and end idle."""
        for _ in range(steps):
            while len(self._streams) < 6:
                self._streams.append(self._request())
            self._engine.step()
            self._streams.rotate()
            stream = self._streams[0]
            stream.pending()
            if self._random.random() < 0.01:
                stream.cancel()
            if stream.finished:
                self._streams.popleft()
        for stream in self._streams:
            stream.result()
        self._streams.clear()

    def _request(self) -> Stream:
        random = self._random
        self.requests += 1
        prompt = "the quick brown fox " * int(random.integers(1, 6))
        ids = random.integers(2, 300, random.integers(1, 90)).tolist()
        params = SamplingParams(
            temperature=float(random.choice([0.0, 0.8])),
            top_p=float(random.choice([0.9, 1.0])),
            seed=int(random.integers(1000)),
            max_tokens=int(random.integers(1, 60)),
            stop=("zz", "ab") if random.random() < 0.3 else (),
        )
        return self._engine.submit(prompt if random.random() < 0.5 else ids, params)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.nightly
@pytest.mark.parametrize("use", ["none", "ngram"])
def test_twenty_thousand_steps_take_no_more_memory(make_engine: MakeEngine, use: str):
    engine = make_engine(speculation__use=use, scheduler__max_batch_tokens=64)
    load = Load(engine)
    tracemalloc.start()
    try:
        load.run(WARM)
        before, requests = held(), load.requests
        load.run(STEPS - WARM)
        after = held()
    finally:
        tracemalloc.stop()
    assert load.requests - requests > 1000
    # What one request leaves behind would show a thousandfold, what one step does sixteen thousandfold.
    assert after.traced - before.traced < 32_000
    assert after.objects - before.objects < 500
    assert after.resident - before.resident < 4 << 20
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
