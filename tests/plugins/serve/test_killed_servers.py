"""kill -9 at any moment: what a client has and what the next server goes on with are the undisturbed answer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir, model_dir
from serve_parts import until
from stream_parts import DONE, frames, texts

TOKENS = 160
BODIES = [
    {"model": "bard" if k % 2 else None, "prompt": "The king " * (k + 1), "max_tokens": TOKENS, "seed": k + 1,
     "ignore_eos": True, "temperature": 0.8, "stream": True}
    for k in range(4)
]  # fmt: skip


def serve(tmp_path: Path) -> tuple[subprocess.Popen[bytes], str]:
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    program = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, "serve", str(model_dir()), "--port", "0", "-t", "1"]
    command += ["--ready-file", str(ready), "--journal", str(tmp_path / "journal")]
    command += ["--lora", f"bard={adapter_dir('shakespeare')}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    assert until(lambda: ready.exists() or process.poll() is not None, 120), "the server does not start"
    assert process.poll() is None, "the server ended"
    return process, ready.read_text().strip()


def collected(base: str, path: str, got: list[bytes], **more: Any) -> bool:
    """Add whole frames of a stream to ``got``; return whether it came to its end."""
    method = "POST" if "json" in more else "GET"
    held = b""
    try:
        with httpx.stream(method, f"{base}{path}", timeout=60, **more) as response:
            assert response.status_code == 200, response.read()
            for data in response.iter_bytes():
                *whole, held = (held + data).split(b"\n\n")
                got += whole
    except httpx.HTTPError:
        pass
    return bool(got) and got[-1] == DONE


def last_id(got: list[bytes]) -> str:
    return frames(got[-1] + b"\n\n")[0][0] if got else ""


def place(got: list[bytes]) -> int:
    """Return how many tokens of a stream have come."""
    position = last_id(got).rpartition("/")[2].partition("-")[0]
    return TOKENS + 1 if got and got[-1] == DONE else int(position or 0)


def text(got: list[bytes]) -> list[tuple[str, list[str]]]:
    return texts([("", frame) for frame in got])


def killed(tmp_path: Path, times: int, seed: int) -> None:
    """Kill a server ``times`` times, each time when one of its four streams has come to some token."""
    rng = random.Random(seed)
    process, base = serve(tmp_path)
    undisturbed: list[list[bytes]] = [[] for _ in BODIES]
    for body, got in zip(BODIES, undisturbed, strict=True):
        assert collected(base, "/v1/completions", got, json=body)
    broken = 0
    with ThreadPoolExecutor(len(BODIES)) as pool:
        for _ in range(times):
            streams: list[list[bytes]] = [[] for _ in BODIES]
            ask = partial(collected, base, "/v1/completions")
            asked = [pool.submit(ask, got, json=body) for got, body in zip(streams, BODIES, strict=True)]
            watched, point = rng.choice(streams), rng.randrange(TOKENS)
            assert until(lambda watched=watched, point=point: place(watched) >= point, 60)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            ends = [future.result() for future in asked]
            process, base = serve(tmp_path)
            for got, whole, has_ended in zip(streams, undisturbed, ends, strict=True):
                if got and not has_ended:  # without a frame its client has heard nothing of it: it may ask again
                    last = last_id(got)
                    path = f"/v1/streams/{last.rpartition('/')[0]}"
                    assert collected(base, path, got, headers={"last-event-id": last}), "the next server ended too"
                    broken += 1
                assert not got or text(got) == text(whole)
    assert broken >= times  # of four each time
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.slow
def test_streams_survive_a_killed_server(tmp_path: Path):
    killed(tmp_path, 8, 1)


@pytest.mark.nightly
def test_streams_survive_fifty_killed_servers(tmp_path: Path):
    killed(tmp_path, 50, 2)
