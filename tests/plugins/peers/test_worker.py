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
from infeng_bench.costs import calibration
from infeng_bench.engine import running
from infeng_bench.engine.running import MeasurementError, perform
from infeng_bench.engine.work import Work
from infeng_bench.models import adapters, synthetic
from infeng_peers import worker

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


@pytest.mark.parametrize("step_ms", [0, 1])
def test_all_rows_decode_in_all_steps_under_any_step_limit(tiny_config: Path, step_ms: int) -> None:
    # Beside rows that decode, steps of a millisecond take 16 rows of a prompt: the last comes long after the first.
    overrides = {"scheduler.step_ms": step_ms, "scheduler.max_running": 8}
    decoding: list[int] = []
    with Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1, overrides=overrides) as bounded:
        with calibration.watched(bounded) as watch:
            timing = perform(bounded, Work.parse("decode:rows=8,context=150,steps=6"), seed=1)
        decoding = [step.rows for step, _ in watch.steps[-6:]]
        assert bounded.scheduler.step_seconds == (step_ms / 1000 or None)  # as it was, for those who come after
    assert decoding == [8] * 6
    assert timing.tokens == 8 * 6


def test_a_work_with_a_row_that_did_not_decode_has_no_figure(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_room", lambda engine, work: 4)
    with pytest.raises(MeasurementError, match="row 0 of 3 has 3 tokens of 9 steps: it did not decode in every step"):
        perform(engine, Work.parse("decode:rows=3,context=20,steps=9"), seed=1)
    assert engine.step() is False


def test_prompts_are_timed_without_concurrent_decode(tiny_config: Path) -> None:
    overrides = {"scheduler.max_batch_tokens": 32}
    with (
        Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1, overrides=overrides) as small,
        calibration.watched(small) as watch,
    ):
        perform(small, Work.parse("prefill:rows=4,context=64"), seed=1)
    assert sum(step.rows for step, _ in watch.steps) == 4 * 64


def test_prefill_counts_the_tokens_of_the_prompts(engine: Engine) -> None:
    timing = perform(engine, Work.parse("prefill:rows=2,context=30"), seed=1)
    assert timing.tokens == 60
    assert timing.seconds == timing.prefill_seconds


def test_a_finished_work_leaves_the_engine_empty(engine: Engine) -> None:
    perform(engine, Work.parse("decode:rows=4,context=20,steps=2"), seed=1)
    assert engine.step() is False


@pytest.mark.parametrize("rows", [4, 6])
def test_a_prompt_in_several_chunks_still_leaves_room_for_every_step(tiny_config: Path, rows: int) -> None:
    # Rows that decode take the place of prompts: the first of six decodes for 45 steps before the last begins.
    overrides = {"scheduler.max_batch_tokens": 8}
    with Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1, overrides=overrides) as small:
        timing = perform(small, Work.parse(f"decode:rows={rows},context=40,steps=6"), seed=1)
    assert timing.tokens == rows * 6


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


def test_each_line_gets_an_answer_and_empty_ones_none(engine: Engine) -> None:
    answers = converse(
        engine,
        '{"work": "decode:rows=2,context=9,steps=3", "seed": 5}\n',
        "\n",
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
        ('{"work": "decode:context=9", "uses": "a"}', "uses is not a list"),
        ('{"work": "decode:context=9", "uses": ["nobody"]}', "nobody"),
    ],
)
def test_a_bad_request_is_answered_with_an_error_and_the_worker_goes_on(engine: Engine, line: str, said: str) -> None:
    answers = converse(engine, line, '{"work": "prefill:context=4"}')
    assert said in answers[0]["error"]
    assert answers[1]["tokens"] == 4


@pytest.fixture(scope="module")
def directories(tiny_config: Path) -> list[Path]:
    return [adapters.peft_directory(tiny_config, 4, "all", seed) for seed in range(3)]


def held(*directories: Path, scale: float = 4.0) -> str:
    """Return the line that asks for adapters a, b, ..."""
    names = "abcdef"[: len(directories)]
    wanted = [{"name": n, "path": str(path), "scale": scale} for n, path in zip(names, directories, strict=True)]
    return json.dumps({"adapters": wanted})


def ask(*adapters: str | None, places: int = 2, new: int = 6) -> str:
    """Return the line that asks the same of each adapter."""
    requests = [{"at": 0.0, "prompt": [5, 6, 7, 8], "new": new, "adapter": name} for name in adapters]
    return json.dumps({"serve": {"requests": requests, "places": places}})


def test_the_rows_of_a_work_use_adapters_in_turn(
    engine: Engine, directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[str | None] = []
    submit = engine.submit

    def watched(request: Any, *rest: Any, **more: Any) -> Any:
        users.append(more.get("adapter"))
        return submit(request, *rest, **more)

    monkeypatch.setattr(engine, "submit", watched)
    work = '{"work": "decode:rows=3,context=9,steps=2", "uses": ["a", "b"]}'
    loaded, done, _ = converse(engine, held(*directories[:2]), work, held())
    assert done["tokens"] == 6
    assert users[-3:] == ["a", "b", "a"]
    assert loaded["bytes"]["a"] == loaded["bytes"]["b"] > 0


def test_requests_run_with_the_adapters_that_they_name(engine: Engine, directories: list[Path]) -> None:
    lines = [
        held(*directories[:2]),
        ask("a", "b", None, "a"),
        held(*directories[1:]),
        ask("a", None),
        held(),
        ask(None),
    ]
    first, mixed, second, others, none, base = converse(engine, *lines)
    assert set(first["load_ms"]) == set(second["load_ms"]) == {"a", "b"}
    assert none["load_ms"] == {}
    a, b, plain, again = (request["ids"] for request in mixed["requests"])
    assert a == again
    assert len({str(ids) for ids in (a, b, plain)}) == 3
    assert others["requests"][0]["ids"] == b  # what was b is now a, from its engine-native form
    assert others["requests"][1]["ids"] == base["requests"][0]["ids"] == plain
    assert all(len(request["times"]) == 6 for request in mixed["requests"])
    assert mixed["seconds"] >= mixed["requests"][3]["times"][-1] >= mixed["requests"][3]["admitted"] > 0
    assert mixed["peak_rss_bytes"] > 1 << 20
    assert mixed["tokens_per_s"] == pytest.approx(24 / mixed["seconds"])
    assert not engine.adapters.infos()


def test_more_adapters_than_fit_take_turns_in_memory(tiny_config: Path, directories: list[Path]) -> None:
    model, few = synthetic.native_directory(tiny_config, "int4-g64"), {"adapters.max_resident": 1}
    with Engine(model, threads=1, overrides=few) as small:
        _, alone, _, crowded = converse(
            small, held(directories[0]), ask("a"), held(*directories), ask("a", "b", "c", "a", places=4)
        )
    assert crowded["requests"][0]["ids"] == crowded["requests"][3]["ids"] == alone["requests"][0]["ids"]
    assert len({str(request["ids"]) for request in crowded["requests"]}) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"adapters": [{"name": "a"}]}', "not in the form that is expected"),
        ('{"adapters": 5}', "not in the form that is expected"),
        ('{"adapters": [{"name": "a", "path": "/nowhere", "scale": 1}]}', "/nowhere"),
        ('{"serve": {"requests": []}}', "not in the form that is expected"),
        ('{"serve": {"requests": [{"at": 0}], "places": 1}}', "not in the form that is expected"),
        (ask("nobody"), "nobody"),
    ],
)
def test_invalid_adapters_and_requests_are_answered_with_an_error(engine: Engine, line: str, said: str) -> None:
    answers = converse(engine, line, ask(None))
    assert said in answers[0]["error"]
    assert len(answers[1]["requests"][0]["ids"]) == 6
    assert engine.step() is False


def test_the_workers_first_line_counts_bytes_and_multiplications(engine: Engine) -> None:
    said = worker.introduction(engine)
    tensors = engine.model.tensors
    assert said["bytes_per_token"] == sum(tensor.nbytes for name, tensor in tensors.items() if name != "embed")
    # 2 layers: qkv 128x64, o 64x64, gate and up 256x64, down 64x128; head 320x64.
    assert said["details"]["macs_per_token"] == 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128) + 320 * 64
    assert said["details"]["attention_macs_per_position"] == 2 * 2 * 64
    assert said["details"]["kv_bytes_per_position"] == 2 * 2 * (2 * 16 + 8)  # layers, heads, int8 K and V, two scales
    assert {kernel["op"] for kernel in said["kernels"]} >= {"linear", "attention", "rmsnorm"}


def test_stdout_carries_the_protocol_alone(tiny_config: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "infeng_peers.worker",
        str(synthetic.native_directory(tiny_config, "int4-g64")),
    ]
    asked = '{"work": "decode:rows=1,context=8,steps=2", "seed": 1}\n'
    ended = subprocess.run([*command, "--threads", "1"], input=asked, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, ended.stderr
    assert (lines[0]["ready"], lines[0]["engine"], lines[1]["tokens"]) == (True, "infeng", 2)


@pytest.mark.slow
def test_a_worker_that_waits_for_the_next_line_uses_no_processor_time(tiny_config: Path) -> None:
    folder = synthetic.native_directory(tiny_config, "int4-g64")
    command = [sys.executable, "-P", "-m", "infeng_peers.worker", str(folder), "--threads", "3"]
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
    assert process.returncode == 0
    assert used <= 0.05


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_missing_model_is_reported_in_the_protocol(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "infeng_peers.worker", str(tmp_path / "missing")]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "no such model directory" in json.loads(ended.stdout)["error"]
    assert "no such model directory" in ended.stderr
