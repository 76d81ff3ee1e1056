"""`infeng run`: its output streams and its exit status."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
from engine_parts import MakeEngine
from infeng_processors.api import bad_words

from infeng_core import SamplingParams
from infeng_core.cli import main

GREEDY = ["--temperature", "0", "-n", "12", "--ignore-eos", "-t", "1"]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
Capture = pytest.CaptureFixture[bytes]


@pytest.fixture
def expected(make_engine: MakeEngine) -> list[str]:
    """Completions of "the quick" and "x"."""
    return [completion.text for completion in make_engine().generate(["the quick", "x"], PARAMS)]


def test_the_completion_alone_is_on_stdout(tiny: Path, expected: list[str], capsysbinary: Capture):
    assert main(["run", str(tiny), "-p", "the quick", *GREEDY]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode() == expected[0]
    assert b"12 tokens in" in err


def test_echo_puts_the_prompt_before_it(tiny: Path, expected: list[str], capsysbinary: Capture):
    assert main(["run", str(tiny), "-p", "the quick", "--echo", *GREEDY]) == 0
    assert capsysbinary.readouterr().out.decode() == "the quick" + expected[0]


def test_a_prompt_may_come_from_a_file_or_standard_input(
    tiny: Path, expected: list[str], capsysbinary: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "prompt").write_text("the quick")
    for arguments in (["-f", str(tmp_path / "prompt")], ["-f", "-"], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the quick")))
        assert main(["run", str(tiny), *arguments, *GREEDY]) == 0
        assert capsysbinary.readouterr().out.decode() == expected[0]


def test_several_prompts_are_printed_in_their_order(tiny: Path, expected: list[str], capsysbinary: Capture):
    assert main(["run", str(tiny), "-p", "the quick", "-p", "x", *GREEDY]) == 0
    assert capsysbinary.readouterr().out.decode() == "".join(f"{text}\n" for text in expected)


def test_json_has_every_field_of_the_completion(tiny: Path, expected: list[str], capsysbinary: Capture):
    assert main(["run", str(tiny), "-p", "the quick", "--json", "--seed", "7", *GREEDY]) == 0
    facts = json.loads(capsysbinary.readouterr().out)
    assert (facts["text"], facts["finish_reason"], facts["seed"]) == (expected[0], "length", 7)
    assert facts["usage"]["completion_tokens"] == len(facts["token_ids"]) == 12
    assert facts["usage"]["total_tokens"] == 12 + facts["usage"]["prompt_tokens"]
    assert facts["timings"]["load_s"] > 0
    assert facts["timings"]["decode_tokens_per_s"] > 0
    assert {kernel["op"] for kernel in facts["kernels"]} >= {"linear", "attention"}
    assert main(["run", str(tiny), "-p", "the quick", "-p", "x", "--json", *GREEDY]) == 0
    assert [facts["text"] for facts in json.loads(capsysbinary.readouterr().out)] == expected


def test_speculation_changes_only_the_summary(tiny: Path, capsysbinary: Capture):
    arguments = ["run", str(tiny), "-p", "the the the the", "-n", "80", "--temperature", "0", "--ignore-eos", "-t", "1"]
    assert main(arguments) == 0
    plain = capsysbinary.readouterr()
    assert b"guessed" not in plain.err
    assert main([*arguments, "--speculate", "ngram"]) == 0
    guessing = capsysbinary.readouterr()
    assert guessing.out == plain.out
    assert re.search(rb"tokens/s; \d+ of \d+ guessed tokens were right \(\d+%\)", guessing.err)
    assert main([*arguments, "--speculate", "ngram:2", "--json"]) == 0
    facts = json.loads(capsysbinary.readouterr().out)
    assert facts["text"].encode() == plain.out
    assert 0 < facts["usage"]["accepted_tokens"] <= facts["usage"]["drafted_tokens"]


def test_stop_ends_the_text(tiny: Path, expected: list[str], capsysbinary: Capture):
    stop = expected[0][3:6]
    assert main(["run", str(tiny), "-p", "the quick", "--stop", stop, *GREEDY]) == 0
    assert capsysbinary.readouterr().out.decode() == expected[0][: expected[0].index(stop)]


def test_settings_reach_the_engine(tiny: Path, capsysbinary: Capture):
    arguments = ["--set", "kernels.order=reference", "--format", "f32", "--set", "kv_cache.dtype=f32", "--json"]
    assert main(["run", str(tiny), "-p", "x", *arguments, *GREEDY]) == 0
    kernels = json.loads(capsysbinary.readouterr().out)["kernels"]
    assert all(kernel["kernel"].startswith("reference/") for kernel in kernels)
    assert any(kernel["detail"].startswith("embed f32") for kernel in kernels)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "prompt: none is given: give PROMPT, -p TEXT, --ids IDS, -f FILE or -"),
        (["-p", "a", "-f", "b"], "prompt: PROMPT, -p, --ids, -f and - exclude each other"),
        (["-f", "/does/not/exist"], "/does/not/exist: No such file or directory"),
        (["-p", "a", "-n", "0"], "max_tokens: 0 is not an integer from 1"),
        (["-p", "a", "--temperature", "-1"], "temperature: -1.0 is out of range"),
        (["-p", "a" * 3000], "prompt of 3001 tokens: the context is 256 tokens"),
        (["-p", "a", "--speculate", "ngram:many"], "speculate ngram:many: 'many' is not a number of tokens"),
        (["-p", "a", "--speculate", "gram:1000"], "speculation.tokens: 1000 is out of range"),
        (["-p", "a", "--set", "kv_cache.dtypo=f32"], "did you mean"),
        (["-p", "\udcff"], "prompt: it is not valid Unicode"),
    ],
)
def test_wrong_use_is_status_2_with_a_reason(tiny: Path, capsysbinary: Capture, arguments: list[str], text: str):
    assert main(["run", str(tiny), *arguments]) == 2
    out, err = capsysbinary.readouterr()
    assert out == b""
    assert err.startswith(b"infeng: error: ")
    assert text in err.decode()


def test_a_file_that_is_not_utf8_is_named_with_the_place(tiny: Path, capsysbinary: Capture, tmp_path: Path):
    (tmp_path / "prompt").write_bytes(b"abc\xff")
    assert main(["run", str(tiny), "-f", str(tmp_path / "prompt")]) == 2
    assert b"prompt: byte 3 is not UTF-8: convert the file" in capsysbinary.readouterr().err


def test_a_missing_model_is_named(capsysbinary: Capture, tmp_path: Path):
    assert main(["run", str(tmp_path / "nothing"), "-p", "a"]) == 2
    assert b"no such model directory" in capsysbinary.readouterr().err


def test_ctrl_c_stops_at_once_with_status_130(tmp_path: Path):
    shape = tiny_model.Shape(hidden=384, intermediate=1024, heads=6, head_dim=64, max_positions=4096)
    model = tiny_model.write(tmp_path / "model", shape)  # seconds of work on the reference kernels
    code = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "run", str(model), "-p", "the quick", "-n", "4000"]
    slow = ["--ignore-eos", "--set", "kernels.order=reference", "--format", "f32", "-t", "1"]
    process = subprocess.Popen([*command, *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ.copy())
    assert process.stdout is not None
    assert process.stdout.read(1), "nothing was generated"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_filters_penalties_and_bad_words_reach_the_engine(tiny: Path, make_engine: MakeEngine, capsysbinary: Capture):
    engine = make_engine()
    [plain] = engine.generate("the quick", PARAMS)
    word = engine.tokenizer.decode(plain.token_ids[:1])
    given = ["--min-tokens", "3", "--typical-p", "0.9", "--dry-multiplier", "0.8", "--logit-bias", "5=-100"]
    assert main(["run", str(tiny), "-p", "the quick", *GREEDY, *given]) == 0
    wanted = replace(PARAMS, min_tokens=3, typical_p=0.9, dry_multiplier=0.8, logit_bias=((5, -100.0),))
    assert capsysbinary.readouterr().out.decode() == engine.generate("the quick", wanted)[0].text
    if word.strip():
        assert main(["run", str(tiny), "-p", "the quick", *GREEDY, "--bad-words", word]) == 0
        words = bad_words([word], engine.tokenizer)
        out = capsysbinary.readouterr().out.decode()
        assert out == engine.generate("the quick", replace(PARAMS, bad_words_ids=words))[0].text != plain.text
    assert main(["run", str(tiny), "-p", "the quick", *GREEDY, "--bad-words", " "]) == 2
    assert b"bad_words: a word is empty" in capsysbinary.readouterr().err
