"""``infeng convert --quality``: recipes that repeat a conversion, dry runs, and work that goes on where it ended."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tiny_model
import yaml
from infeng_calibrate import calibrator, gptq
from infeng_convert.interfaces.quantizers import Quantized, QuantTarget
from numpy.typing import NDArray

from infeng_core import Engine
from infeng_core.cli import main
from infeng_core.errors import KernelError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), tiny_model.Shape(tie=False))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 25, encoding="utf-8")
    return path


def bytes_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def convert(source: Path, made: Path, *options: object) -> dict[str, str]:
    assert main(["convert", str(source), str(made), *map(str, options)]) == 0
    return bytes_of(made)


@pytest.fixture(scope="module")
def balanced(source: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("balanced") / "made"
    convert(source, made, "--quality", "balanced", "--budget", 6, "--calibrate", text, "--set", "threads.count=2")
    return made


@pytest.mark.slow
def test_a_profile_mixes_formats_within_its_budget_and_records_them(balanced: Path) -> None:
    recipe = yaml.safe_load((balanced / "recipe.yaml").read_text())
    assert (recipe["profile"], recipe["budget"], recipe["quantizer"]) == ("balanced", 6, "gptq")
    assert recipe["text"]["source"] == "file" and recipe["formats"]["embed"] == "int8-row"
    with Engine(balanced, threads=1) as engine:
        used = {format for name, format in engine.model.formats_used.items() if name.startswith("layers.")}
        inner = [tensor for name, tensor in engine.model.tensors.items() if name.startswith("layers.")]
        assert len(used) > 1 and {format.removesuffix("-arow-h256") for format in used} <= {
            "int4-p32",
            "int5-p32",
            "int6-p32",
        }
        assert 5.5 < 8 * sum(one.nbytes for one in inner) / sum(one.panels * 16 * one.k for one in inner) <= 6


@pytest.mark.slow
def test_the_recipe_repeats_the_conversion_byte_for_byte_with_another_number_of_threads(
    source: Path, text: Path, balanced: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "given.yaml"
    recipe.write_bytes((balanced / "recipe.yaml").read_bytes())
    made = convert(source, tmp_path / "made", "--recipe", recipe, "--calibrate", text, "--set", "threads.count=1")
    assert made == bytes_of(balanced)


def test_an_existing_artifact_of_the_same_request_is_kept_unmeasured(
    source: Path, text: Path, balanced: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(balanced)
    monkeypatch.setattr(calibrator, "sensitivities", lambda *_: pytest.fail("measured"))
    assert convert(source, balanced, "--quality", "balanced", "--budget", 6, "--calibrate", text) == before
    assert "is there already, from the same source" in capsys.readouterr().out
    assert main(["convert", str(source), str(balanced), "--quality", "faithful", "--calibrate", str(text)]) == 1
    assert "exists already: give --force" in capsys.readouterr().err and bytes_of(balanced) == before


def test_another_recipe_makes_another_artifact(source: Path, tmp_path: Path) -> None:
    made = [convert(source, tmp_path / name, "--quality", name, "--calibrate", "none") for name in ("small", "int8")]
    plain = convert(
        source, tmp_path / "plain", "--format", "int8-row-arow-h256", "--set", "model.formats.lm_head=int8-row"
    )
    keys = [
        yaml.safe_load((tmp_path / name / "manifest.yaml").read_text())["key"] for name in ("small", "int8", "plain")
    ]
    assert len(set(keys)) == 3 and made[0] != made[1]
    assert made[1]["weights-00001.safetensors"] == plain["weights-00001.safetensors"] and "recipe.yaml" not in plain


def test_a_dry_run_reports_formats_bytes_and_memory_and_writes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["convert", str(source), str(tmp_path / "out" / "made")]
    for options in (["--quality", "small", "--calibrate", "none"], ["--format", "int4-g64"]):
        assert main([*asked, *options, "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert "nothing was written" in said and "bits a weight" in said and "of memory" in said
        assert "int8-row" in said and "embed" in said
    mixed = ["--quality", "balanced", "--budget", "6", "--calibrate", "none", "--json"]
    assert main([*asked, *mixed, "--dry-run"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())
    made = convert(source, tmp_path / "made", *mixed)
    done = json.loads(capsys.readouterr().out)
    assert made and found["formats"] == done["formats"] and found["nbytes"] == done["nbytes"] and found["dry_run"]
    assert found["convert_bytes"] > 0


def test_a_dry_run_of_a_gguf_reports_its_types(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(source), str(tmp_path / "made.gguf"), "--format", "q8_0", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Q8_0" in said and "nothing was written" in said and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--quality", "small", "--format", "int8-row"], "--format: --quality decides it"),
        (["--quality", "small", "--budget", "5"], "small stores every tensor of the layers as int4-p32"),
        (["--quality", "balanced", "--budget", "2", "--calibrate", "none"], "give at least"),
        (["--quality", "balanced", "--budget", "nan"], "is no number of bits"),
        (["--budget", "5"], "add --quality balanced or faithful"),
        (["--quality", "small", "--set", "model.formats.embed=f32"], "change the formats in a recipe.yaml"),
        (["--recipe", "FILE", "--quality", "small"], "--quality: --recipe decides it"),
        (["--recipe", "FILE", "--quantizer", "nearest"], "--quantizer: --recipe decides it"),
        (["--recipe", "FILE"], "its text is a file, which a recipe does not hold: give that file with --calibrate"),
        (["--recipe", "FILE", "--calibrate", "none"], "its calibration text is [0-9]+ tokens, [0-9a-f]{12}, not none"),
        (["--recipe", "/nowhere"], "no such file"),
        (["--calibrate", "auto", "--quantizer", "nearest"], "auto: the quantizer nearest looks at no text"),
        (["--quality", "small", "--calibrate", ""], "no regular file"),
    ],
)
def test_contradictory_options_are_refused_and_nothing_is_written(
    options: list[str], why: str, source: Path, balanced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(balanced / "recipe.yaml") if word == "FILE" else word for word in options]
    assert main(["convert", str(source), str(tmp_path / "made"), *given]) == 2
    assert re.search(why, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"formats": {"*": "int9-p32"}}, "int9-p32"),
        ({"formats": {"*": "int4-p32", "layers.9.o_proj": "f32"}}, "fits no tensor of the model"),
        ({"quantizer": "nobody"}, "quantizer nobody: no plugin provides it"),
        ({"text": {"source": "file", "tokens": 300, "sha256": "0" * 64}}, "its calibration text is 300 tokens"),
    ],
)
def test_a_recipe_of_another_model_is_refused(
    change: dict, why: str, source: Path, text: Path, balanced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = yaml.safe_load((balanced / "recipe.yaml").read_text()) | change
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert (
        main(["convert", str(source), str(tmp_path / "out" / "made"), "--recipe", str(path), "--calibrate", str(text)])
        > 0
    )
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out" / "made").exists()


def test_a_destination_that_cannot_be_written_is_refused_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infeng_calibrate.calibrator._written", lambda *_: pytest.fail("worked"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    for name, why in (
        ("full", "full: exists and is no engine-native directory: choose another"),
        ("full/mine", "mine: exists and is no engine-native directory: choose another"),
        ("full/mine/made", "full/mine cannot be written to: choose another"),
    ):
        assert main(["convert", str(source), str(tmp_path / name), "--quality", "balanced", "--calibrate", "auto"]) == 1
        assert why in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_an_existing_conversion_is_not_repeated(
    balanced: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--quality", "balanced"], ["--quality", "small", "--calibrate", str(text)], ["--dry-run"]):
        assert main(["convert", str(balanced), str(tmp_path / "made"), *words]) == 1
        assert "is converted already: convert the original" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- interrupted work


class Calls:
    """Counts what the quantizer is asked; Ctrl-C comes when it is asked for more than ``stop`` matrices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.stop, self._quantize = 0, 1000, gptq.Gptq.quantize
        monkeypatch.setattr(gptq.Gptq, "quantize", lambda *arguments: self._counted(*arguments))

    def _counted(self, quantizer: gptq.Gptq, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        self.count += 1
        if self.count > self.stop:
            raise KeyboardInterrupt
        return self._quantize(quantizer, weights, target)

    def run(self, stop: int, *words: object) -> int:
        """Convert, and return how many matrices were asked for."""
        self.count, self.stop = 0, stop
        assert main(["convert", *map(str, words)]) == (130 if self.count > stop else 0)
        return self.count


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_resumes_and_gives_equal_bytes(
    source: Path, text: Path, balanced: Path, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    asked = [source, out, "--quality", "balanced", "--budget", 6, "--calibrate", text]
    assert calls.run(7, *asked) == 8
    assert {path.name for path in tmp_path.iterdir()} == {".made.infeng-partial"}
    monkeypatch.setattr(calibrator, "sensitivities", lambda *_: pytest.fail("measured"))
    assert calls.run(5, *asked) == 6  # a second time: down, q, k, v and o were chosen
    # Embedding, q, k, v, o, gate, up and down of one layer, q, k, v and o of the other are there.
    assert calls.run(99, *asked) == 4
    assert bytes_of(out) == bytes_of(balanced)
    assert {path.name for path in tmp_path.iterdir()} == {"made"}


def test_a_damaged_tensor_and_all_after_it_are_converted_again(
    source: Path, text: Path, balanced: Path, tmp_path: Path, calls: Calls
) -> None:
    out, partial = tmp_path / "made", tmp_path / ".made.infeng-partial"
    asked = [source, out, "--recipe", balanced / "recipe.yaml", "--calibrate", text]
    calls.run(12, *asked)
    with (partial / "weights-00001.safetensors").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1000, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    with (partial / "journal").open("a") as journal:
        journal.write('["layers.1.down')
    assert calls.run(99, *asked) == 5  # the o that was damaged, gate, up, down and the head
    assert bytes_of(out) == bytes_of(balanced)


def test_leftovers_of_other_conversions_and_world_writable_ones_are_removed(
    source: Path, text: Path, balanced: Path, tmp_path: Path, calls: Calls
) -> None:
    out = tmp_path / "made"
    asked = [source, out, "--recipe", balanced / "recipe.yaml", "--calibrate", text]
    calls.run(5, source, out, "--format", "int4-g64", "--calibrate", text)
    calls.run(12, *asked)
    (tmp_path / ".made.infeng-partial").chmod(0o777)
    assert calls.run(99, *asked) == 16
    assert bytes_of(out) == bytes_of(balanced) and {path.name for path in tmp_path.iterdir()} == {"made"}


def test_a_failed_conversion_leaves_no_file(
    source: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KernelError("calibration", "boom", "")

    monkeypatch.setattr(gptq.Gptq, "quantize", broken)
    assert main(["convert", str(source), str(tmp_path / "made"), "--quality", "small", "--calibrate", str(text)]) == 1
    assert not list(tmp_path.iterdir())


WAITING = """
    import sys
    from infeng_calibrate import gptq
    from infeng_core.cli import main
    asked, quantize = 0, gptq.Gptq.quantize
    def counted(self, weights, target):
        global asked
        asked += 1
        if asked > 7:
            print("stopped", flush=True)
            sys.stdin.read()
        return quantize(self, weights, target)
    gptq.Gptq.quantize = counted
    sys.exit(main(["convert", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_conversion_of_a_killed_process_is_continued(
    how: signal.Signals, source: Path, text: Path, balanced: Path, tmp_path: Path, calls: Calls
) -> None:
    asked = [source, tmp_path / "made", "--quality", "balanced", "--budget", 6, "--calibrate", text]
    command = [sys.executable, "-P", "-c", textwrap.dedent(WAITING), *map(str, asked)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "stopped\n"
    process.send_signal(how)
    process.wait(timeout=60)
    process.communicate()
    assert calls.run(99, *asked) == 9
    assert bytes_of(tmp_path / "made") == bytes_of(balanced)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_layers(text: Path, tmp_path: Path) -> None:
    code = """
        import sys
        from infeng_core.cli import main
        assert main(["convert", sys.argv[1], sys.argv[2], "--quality", "small", "--calibrate", sys.argv[3]]) == 0
        # Of this program alone: ru_maxrss counts what its parent held when it was forked.
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
    """
    peaks = []
    for layers in (2, 12):
        shape = tiny_model.Shape(hidden=256, intermediate=1024, heads=8, kv_heads=8, head_dim=32, layers=layers)
        source = tiny_model.write(tmp_path / f"source{layers}", shape)
        command = [sys.executable, "-P", "-c", textwrap.dedent(code), source, tmp_path / f"made{layers}", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(1024 * int(done.stdout.splitlines()[-1]))
    weights = 4 * 10 * (4 * 256 * 256 + 3 * 256 * 1024)  # of ten layers, as float32: 42 MB
    assert peaks[1] - peaks[0] < weights / 3
