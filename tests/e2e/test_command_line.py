"""``infeng run`` as other programs meet it: text on stdout, the rest on stderr, statuses, Ctrl-C, two at once."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.conftest import INFENG, Run
from goldens.shapes import Case

from infeng_core.cli import main

GREEDY = ("-p", "t5 t6 t7", "-n", "8", "--temperature", "0")


@pytest.mark.slow
def test_only_the_completion_is_on_stdout_and_without_a_terminal_no_colours_and_no_progress_bars(
    reduced: dict[str, Path], infeng: Run, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(tmp_path))  # so that it converts
        plain = infeng("run", reduced["biased"], *GREEDY)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.split()) == 8
    assert all(word.startswith("t") for word in plain.stdout.split())
    for text in (plain.stdout, plain.stderr):
        assert "\x1b" not in text
        assert "\r" not in text
    echoed = command("run", reduced["biased"], *GREEDY, "--echo")
    assert echoed.stdout.split() == ["t5", "t6", "t7", *plain.stdout.split()]


@pytest.mark.slow
def test_a_prompt_comes_from_an_argument_a_file_or_stdin(
    reduced: dict[str, Path], command: Run, infeng: Run, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("t5 t6 t7")
    options = ("-n", "8", "--temperature", "0")
    argument = command("run", reduced["biased"], *GREEDY)
    file = command("run", reduced["biased"], "-f", tmp_path / "prompt.txt", *options)
    stdin = infeng("run", reduced["biased"], "-", *options, input="t5 t6 t7", stdin=None)
    assert argument.stdout == file.stdout == stdin.stdout != ""


def test_json_holds_the_same_text(reduced: dict[str, Path], command: Run) -> None:
    plain, done = command("run", reduced["biased"], *GREEDY), command("run", reduced["biased"], *GREEDY, "--json")
    assert done.returncode == 0, done.stderr
    assert plain.stdout.strip() in json.dumps(json.loads(done.stdout), ensure_ascii=False)


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(reduced: dict[str, Path]) -> None:
    command = f"{INFENG} run {reduced['biased']} -p t5 -n 400 --temperature 0 --set model.format=f32 | head -c 3"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert len(done.stdout) == 3
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


LONG = "x" * 5000
AROUND = {
    "full disk behind stdout": ("run MODEL -p t5 -n 4 > /dev/full", "No space left on device"),
    "closed stdout": ("run MODEL -p t5 -n 4 >&-", "standard output: it is closed"),
    "closed stdin": ("run MODEL - <&-", "standard input: it is closed"),
    "stdin without end": ("run MODEL - < /dev/zero", "it has more than 16777216 bytes"),
    "too few files": ("run MODEL -p t5", "raise the limit of open files", "ulimit -n 6; INFENG_CACHE=/dev/null/x "),
    "too little memory": (
        "run MODEL -p t5 -t 1 --set kv_cache.memory=1GB",
        "set kv_cache.memory",
        "ulimit -v 800000; ",
    ),
    "nonsense in the log's variable": ("doctor", "unknown word 'loud'", "INFENG_LOG=loud "),
    "newlines in an option": ("doctor $'--x\\ninfeng: error: forged'", "--x\\ninfeng: error: forged"),
    "escapes in a name": ("run $'\\e[2J\\u202e' -p t5", "\\x1b[2J\\u202e"),
}
"""What is around a process: how a shell starts it, what is said, and what stands before it."""

GIVEN = {
    "prompt file without end": (["run", "MODEL", "-f", "/dev/zero"], "/dev/zero: it has more than 16777216 bytes"),
    "model name of 300 characters": (["run", LONG[:300], "-p", "t5"], "File name too long"),
    "model name of 5,000 characters": (["run", LONG, "-p", "t5"], "File name too long"),
    "prompt file of 5,000 characters": (["run", "MODEL", "-f", LONG], "File name too long"),
    "manifest of 5,000 characters": (["run", "MODEL", "-p", "t5", "--manifest", LONG], "(5000 characters)"),
    "adapter of 5,000 characters": (["run", "MODEL", "-p", "t5", "--lora", f"a={LONG}"], "x is not there"),
    "no such user": (["run", "~nobody-at-all", "-p", "t5"], "Could not determine home directory"),
    "NUL in a setting": (["run", "MODEL", "-p", "t5", "--set", 'plugins.paths=["a\\0b"]'], "NUL"),
    "lock into a missing folder": (
        ["plugins", "lock", "MODEL", "-o", "nowhere/x.lock"],
        "nowhere/x.lock: no file can be written",
    ),
    "lock onto a folder": (["plugins", "lock", "MODEL", "-o", "."], "no file can be written there"),
    "convert to the root": (["convert", "MODEL", "/"], "is no name of a directory to write"),
    "too many threads": (["run", "MODEL", "-p", "t5", "-t", "1025"], "1025 is out of range"),
    "overflow in a variable": (["doctor"], "is out of range", ("INFENG_KV_CACHE_MEMORY", "9" * 400)),
    "nonsense in the processor's variable": (["doctor"], "unknown feature", ("INFENG_CPU_FEATURES", "-abacus")),
    "cache inside of a file": (["convert", "MODEL", "/dev/null/x"], "cannot be written"),
    "newlines in a name": (
        ["run", "x\ninfeng: error: forged", "-p", "t5"],
        "x\\ninfeng: error: forged: no such model",
    ),
}
"""What a process is given: its words, what is said, and a variable."""


def assert_one_line(done: subprocess.CompletedProcess[str], said: str, folder: Path) -> None:
    assert done.returncode in (1, 2), done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("usage:", " "))]
    assert len(errors) == 1, done.stderr
    assert "error: " in errors[0] and said in errors[0]
    assert len(errors[0]) < 3200
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", AROUND)
def test_errors_of_the_environment_are_one_line(reduced: dict[str, Path], tmp_path: Path, kind: str) -> None:
    words, said, before = (*AROUND[kind], "")[:3]
    line = f"{before}{INFENG} {words.replace('MODEL', str(reduced['biased']))}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert_one_line(done, said, tmp_path)


@pytest.mark.parametrize("kind", GIVEN)
def test_errors_of_arguments_are_one_line(
    reduced: dict[str, Path], tmp_path: Path, kind: str, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, said, *variables = GIVEN[kind]
    monkeypatch.chdir(tmp_path)
    for name, value in variables:
        monkeypatch.setenv(name, value)
    done = command(*(str(reduced["biased"]) if word == "MODEL" else word for word in words))
    assert_one_line(done, said, tmp_path)


def test_a_dash_means_standard_input_in_any_position(
    reduced: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, options = str(reduced["biased"]), ("-n", "4", "--temperature", "0")
    said = set()
    for words in ((model, "-", *options), (model, *options, "-"), (*options, model, "-"), (model, *options, "-f", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"t5 t6")))
        assert main(["run", *words]) == 0
        said.add(capfd.readouterr().out)
    assert len(said) == 1


def test_a_model_without_a_tokenizer_answers_token_ids(reduced: dict[str, Path], command: Run, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(reduced["biased"], tmp_path / "bare"))
    (bare / "tokenizer.json").unlink()
    refused = command("run", bare, *GREEDY)
    assert refused.returncode == 1
    assert "--ids" in refused.stderr
    options = ("-n", "4", "--temperature", "0")
    done = command("run", bare, "--ids", "5 6,7", *options)
    assert done.returncode == 0, done.stderr
    json_ = json.loads(command("run", bare, "--ids", "5 6 7", *options, "--json").stdout)
    assert [int(word) for word in done.stdout.split()] == json_["token_ids"]
    assert len(json_["token_ids"]) == 4
    wrong = command("run", bare, "--ids", "5 six", *options)
    assert wrong.returncode == 2
    assert "'six' is not a token id" in wrong.stderr


def test_ctrl_c_while_generating_stops_with_status_130(stories: Path) -> None:
    slow = ("--set", "backend.use=numpy")
    command = [INFENG, "run", str(stories), "-p", "", "-n", "500", "--temperature", "0", *slow]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    first = process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert first == "Once"
    assert "Traceback" not in errors


@pytest.mark.slow
def test_two_processes_that_convert_one_model_both_succeed(
    reduced: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    command = [INFENG, "run", str(reduced["biased"]), *GREEDY]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""


def _small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_while_converting_leaves_nothing_behind(
    reduced: dict[str, Path], infeng: Run, tmp_path: Path
) -> None:
    done = infeng("convert", reduced["biased"], tmp_path / "out", preexec_fn=_small_files_only)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "infeng: error: " in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that takes long enough to convert to be interrupted."""
    from goldens.shapes import config_json

    config = config_json(hidden=768, inner=2048, layers=6, heads=12, kv_heads=4, vocab=8000, rope_theta=10000.0)
    return Case("large", seed=1, prompt_length=1, config=config).write(tmp_path_factory.mktemp("large"))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 0.6, 0.9, 1.2, 1.5])
def test_ctrl_c_while_converting_leaves_nothing_half_written(large: Path, tmp_path: Path, delay: float) -> None:
    command = [INFENG, "convert", str(large), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 130, -signal.SIGINT), errors  # the interpreter itself may still be starting
    left = [path.name for path in tmp_path.iterdir()]
    assert left in ([], ["out"])  # the signal may come when all is done, before the process has ended
    assert (tmp_path / "out" / "manifest.yaml").is_file() == bool(left)
    assert left or process.returncode


GROWTH = """
import sys
from infeng_core import Engine, SamplingParams

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

with Engine(sys.argv[1], threads=1) as engine:
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=100, ignore_eos=True)
    sizes = []
    for _ in range(int(sys.argv[2])):
        for _ in range(5):
            engine.generate(["t5 t6 t7", "t8", "t9 t4"], params)
        sizes.append(resident())
print(*sizes)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.nightly)], ids=["2000 steps", "20000 steps"])
def test_memory_does_not_grow_over_thousands_of_steps(reduced: dict[str, Path], rounds: int) -> None:
    command = [sys.executable, "-P", "-c", GROWTH, str(reduced["llama3"]), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    sizes = [int(size) for size in done.stdout.split()]
    assert sizes[-1] - sizes[0] < 2_000_000, sizes
