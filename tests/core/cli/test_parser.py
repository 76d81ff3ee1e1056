"""The parser: free positions of the prompt, other engines' option names, and suggestions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engine_parts import MakeEngine

from infeng_core import SamplingParams, cli

GREEDY = ["--temperature", "0", "--ignore-eos", "-t", "1"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def expected(make_engine: MakeEngine) -> str:
    """What follows "the quick"."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return make_engine().generate("the quick", params)[0].text


@pytest.mark.parametrize(
    "words",
    [
        ["MODEL", "the quick", "-n", "6"],
        ["MODEL", "-n", "6", "the quick"],
        ["-m", "MODEL", "the quick", "-n", "6"],
        ["-n", "6", "-m", "MODEL", "the quick"],
        ["-m", "MODEL", "-p", "the quick", "--max-new-tokens", "6"],
        ["-m", "MODEL", "-p", "the quick", "--n-predict", "6", "-c", "32"],
        ["MODEL", "the quick", "--max-tokens", "6", "--ctx-size", "32"],
        ["MODEL", "the quick", "-n", "6", "--context", "32"],
    ],
    ids=" ".join,
)
def test_the_prompt_may_stand_anywhere_and_options_accept_other_engines_names(
    tiny: Path, expected: str, words: list[str], capsys: Capture
) -> None:
    assert cli.main(["run", *(str(tiny) if word == "MODEL" else word for word in words), *GREEDY]) == 0
    assert capsys.readouterr().out == expected


def test_the_context_option_limits_the_models_context(tiny: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(tiny), "the quick", "-n", "30", "--context", "8", *GREEDY, "--json"]) == 0
    assert '"finish_reason": "length"' in capsys.readouterr().out
    assert cli.main(["run", str(tiny), "the quick brown fox jumps over the lazy dog" * 4, "--context", "8"]) != 0
    assert "8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "MODEL", "text", "--tempreture", "0"], "--tempreture 0: did you mean `--temperature`?"),
        (["run", "MODEL", "text", "--tempreture=0"], "--tempreture=0: did you mean `--temperature`?"),
        (["run", "MODEL", "text", "--qqq"], "unrecognized arguments: --qqq\n"),
        (["plugins", "list", "one"], "unrecognized arguments: one\n"),
        (["run", "MODEL", "one", "--qqq", "two"], "unrecognized arguments: --qqq two\n"),
        (["cache", "prune", "--dryrun"], "--dryrun: did you mean `--dry-run`?"),
        (["plugins", "list", "--jsn"], "--jsn: did you mean `--json`?"),
        (["run"], "the following arguments are required: MODEL"),
    ],
)
def test_an_unknown_argument_is_named_with_a_suggestion(words: list[str], said: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_prompt_given_twice_is_refused(tiny: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(tiny), "one", "-p", "two"]) == 2
    assert "PROMPT, -p, --ids, -f and - exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["MODEL", "the quick", "lazy"],
        ["MODEL", "the quick", "-n", "6", "lazy"],
        ["-m", "MODEL", "the quick", "lazy"],
        ["-n", "6", "-m", "MODEL", "the quick", "lazy"],
    ],
    ids=" ".join,
)
def test_several_words_are_several_prompts_with_labelled_answers(
    tiny: Path, make_engine: MakeEngine, words: list[str], capsys: Capture
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    answers = [completion.text for completion in make_engine().generate(["the quick", "lazy"], params)]
    words = [str(tiny) if word == "MODEL" else word for word in words]
    assert cli.main(["run", *words, "-n", "6", *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == "".join(f"{text}\n" for text in answers)  # nothing but the answers
    assert [line for line in err.splitlines() if line.startswith("[")] == ["[1] the quick", "[2] lazy"]


def test_a_single_answer_has_no_label(tiny: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(tiny), "the quick", "-n", "2", *GREEDY]) == 0
    assert "[1]" not in capsys.readouterr().err


def test_standard_input_excludes_other_prompts(tiny: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(tiny), "one", "-"]) == 2
    assert "- (standard input) stands alone" in capsys.readouterr().err


DEFAULTS = {
    "run": ["0 is greedy; larger is more even (default: 1)", "most new tokens (default: 256)",
            "(default: a random one)", "(default: int4-p32-arow-h256)", "(default: the model's)"],
    "chat": ["0 is greedy; larger is more even (default: the model's, else 1)", "most new tokens (default: 1024)"],
    "ask": ["sampling (default: the server's)", "(default: 600)"],
    "demo": ["tokens per answer (default: 96)"],
    "top": ["(default: 2)"],
    "bench decode": ["new tokens (default: 32)"],
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_help_prints_each_default_once(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main([*name.split(), "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert [words for words in DEFAULTS[name] if words not in text] == []
    assert "(96)" not in text and "(2)" not in text


@pytest.mark.parametrize("name", ["run", "chat", "ask", "demo"])
def test_all_generating_commands_use_one_name_for_max_tokens(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    assert re.search(r"-n( N)?, --max-tokens N", capsys.readouterr().out)  # Python 3.13 writes N once


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["serve", "MODEL", "--prot", "1"], "--port"),
        (["top", "URL", "--intervall", "1"], "--interval"),
        (["demo", "--sed", "1"], "--seed"),
        (["chat", "MODEL", "--sytem", "x"], "--system"),
        (["ask", "URL", "--api-kee", "x"], "--api-key"),
        (["adapters", "list", "URL", "--jsn"], "--json"),
        (["bench", "decode", "--model", "M", "--contxt", "1"], "--context"),
    ],
)
def test_every_command_suggests_the_likely_option(words: list[str], meant: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert f"did you mean `{meant}`?" in capsys.readouterr().err


def test_ask_refuses_a_word_that_is_no_question(capsys: Capture) -> None:
    assert cli.main(["ask", "http://127.0.0.1:1", "hello"]) == 2
    assert "hello: it is neither an option nor -: give -p TEXT or -" in capsys.readouterr().err
