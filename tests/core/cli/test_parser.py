"""Words of the command line: where the prompt may stand, what other engines call options, what was probably meant."""

from __future__ import annotations

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
def test_the_prompt_is_a_word_anywhere_and_options_have_the_names_of_other_engines(
    tiny: Path, expected: str, words: list[str], capsys: Capture
) -> None:
    assert cli.main(["run", *(str(tiny) if word == "MODEL" else word for word in words), *GREEDY]) == 0
    assert capsys.readouterr().out == expected


def test_the_context_of_the_option_is_the_models(tiny: Path, capsys: Capture) -> None:
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
        (["run", "MODEL", "one", "two"], "unrecognized arguments: two\n"),
        (["run", "-m", "MODEL", "one", "two"], "unrecognized arguments: "),
        (["plugins", "list", "--jsn"], "--jsn: did you mean `--json`?"),
        (["run"], "the following arguments are required: MODEL"),
    ],
)
def test_an_unknown_argument_is_named_with_what_was_probably_meant(
    words: list[str], said: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_prompt_given_twice_is_refused(tiny: Path, capsys: Capture) -> None:
    assert cli.main(["run", str(tiny), "one", "-p", "two"]) == 2
    assert "PROMPT, -p, --ids, -f and - exclude each other" in capsys.readouterr().err
