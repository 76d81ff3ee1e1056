"""INF-ENG's worker: its protocol, and that what it says it did is what it did."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from infeng_bench import synthetic, worker
from infeng_bench.running import perform
from infeng_bench.works import Work

from infeng_core import Engine
from infeng_core.errors import UsageError


@pytest.fixture(scope="module")
def engine(tiny_config: Path) -> Iterator[Engine]:
    with Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1) as loaded:
        yield loaded


def converse(engine: Engine, *lines: str) -> list[dict[str, Any]]:
    """Return the worker's answers."""
    answers = io.StringIO()
    worker.serve(engine, lines, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_decoding_counts_the_steps_after_the_first_token(engine: Engine) -> None:
    timing = perform(engine, Work.parse("decode:rows=3,context=20,steps=5"), seed=1)
    assert timing.tokens == 15
    assert len(timing.steps) == 5
    assert sum(timing.steps) == pytest.approx(timing.seconds)
    assert timing.tokens_per_s == pytest.approx(15 / timing.seconds)
    assert timing.prefill_seconds > 0


def test_prefilling_counts_the_tokens_of_the_prompts(engine: Engine) -> None:
    timing = perform(engine, Work.parse("prefill:rows=2,context=30"), seed=1)
    assert timing.tokens == 60
    assert timing.seconds == timing.prefill_seconds


def test_nothing_of_a_work_is_left_in_the_engine(engine: Engine) -> None:
    perform(engine, Work.parse("decode:rows=4,context=20,steps=2"), seed=1)
    assert engine.step() is False


def test_a_prompt_in_several_chunks_still_leaves_room_for_every_step(tiny_config: Path) -> None:
    overrides = {"scheduler.max_batch_tokens": 8}
    with Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1, overrides=overrides) as small:
        timing = perform(small, Work.parse("decode:rows=4,context=40,steps=6"), seed=1)
    assert timing.tokens == 24


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode:rows=1,context=255", "it needs 288 positions and the engine has 256"),
        ("prefill:rows=33,context=2", "scheduler.max_running=33"),
        ("prefill:rows=32,context=200", "cache blocks"),
    ],
)
def test_a_work_that_the_engine_cannot_hold_is_an_error(engine: Engine, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        perform(engine, Work.parse(text), seed=0)
    assert said in str(caught.value)
    assert engine.step() is False


def test_each_line_gets_an_answer_and_quit_ends(engine: Engine) -> None:
    answers = converse(
        engine,
        '{"work": "decode:rows=2,context=9,steps=3", "seed": 5}\n',
        "\n",
        '{"work": "prefill:rows=1,context=9"}\n',
        '{"quit": true}\n',
        '{"work": "prefill:rows=1,context=9"}\n',
    )
    assert [answer["tokens"] for answer in answers] == [6, 9]
    assert answers[0]["tokens_per_s"] == pytest.approx(6 / answers[0]["seconds"])
    assert set(answers[0]["step_ms"]) == {"median", "min", "max"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("decode", "not JSON"),
        ("[]", "names no work"),
        ("{}", "names no work"),
        ('{"work": "decod:rows=1"}', "did you mean `decode`"),
        ('{"work": "decode", "seed": "x"}', "seed"),
        ('{"work": "decode:context=9999"}', "positions"),
    ],
)
def test_a_bad_request_is_answered_with_an_error_and_the_worker_goes_on(engine: Engine, line: str, said: str) -> None:
    answers = converse(engine, line, '{"work": "prefill:context=4"}')
    assert said in answers[0]["error"]
    assert answers[1]["tokens"] == 4


def test_the_introduction_counts_bytes_and_multiplications(engine: Engine) -> None:
    said = worker.introduction(engine)
    tensors = engine.model.tensors
    assert said["bytes_per_token"] == sum(tensor.nbytes for name, tensor in tensors.items() if name != "embed")
    # 2 layers: qkv 128x64, o 64x64, gate and up 256x64, down 64x128; head 320x64.
    assert said["details"]["macs_per_token"] == 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128) + 320 * 64
    assert said["details"]["attention_macs_per_position"] == 2 * 2 * 64
    assert said["details"]["kv_bytes_per_position"] == 2 * 2 * (2 * 16 + 8)  # layers, heads, int8 K and V, two scales
    assert {kernel["op"] for kernel in said["kernels"]} >= {"linear", "attention", "rmsnorm"}


def test_the_process_speaks_nothing_but_the_protocol_on_stdout(tiny_config: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "infeng_bench.worker",
        str(synthetic.native_directory(tiny_config, "int4-g64")),
    ]
    asked = '{"work": "decode:rows=1,context=8,steps=2", "seed": 1}\n'
    ended = subprocess.run([*command, "--threads", "1"], input=asked, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, ended.stderr
    assert (lines[0]["ready"], lines[0]["engine"], lines[1]["tokens"]) == (True, "infeng", 2)


def test_a_worker_that_waits_for_the_next_line_uses_no_processor_time(tiny_config: Path) -> None:
    folder = synthetic.native_directory(tiny_config, "int4-g64")
    command = [sys.executable, "-P", "-m", "infeng_bench.worker", str(folder), "--threads", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        print('{"work": "decode:context=8,steps=4"}', file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline())["tokens"] == 4
        time.sleep(0.1)  # an idle thread may spin for a moment before it sleeps
        before = cpu_seconds(process.pid)
        time.sleep(0.5)
        used = cpu_seconds(process.pid) - before
        print('{"quit": true}', file=process.stdin, flush=True)
    assert process.returncode == 0
    assert used <= 0.05


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_model_that_is_not_there_is_said_in_the_protocol_too(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "infeng_bench.worker", str(tmp_path / "missing")]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "no such model directory" in json.loads(ended.stdout)["error"]
    assert "no such model directory" in ended.stderr
