"""The table of sampling parameters drives checks, options and docs."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest

from infeng_core import SamplingParams
from infeng_core.cli.generation import add_sampling_options, sampling_fields, sampling_params
from infeng_core.errors import RequestError
from infeng_core.requests.parameters import HUGE, SAMPLING

CLI = Path(__file__).parents[3] / "docs" / "cli.md"
INSIDE = {"logprobs", "prompt_logprobs", "logits", "bad_words_ids", "processors", "skip_special_tokens"}
"""What a caller of the library or of a server asks for, and the command line does not."""
GIVEN = {
    "number": ("0.5", 0.5), "integer": ("3", 3), "flag": (None, True), "texts": ("a b", ["a b"]),
    "tokens": ("1 2,3", [1, 2, 3]), "biases": ("7=-1.5", {7: -1.5}),
}  # fmt: skip
"""Words of an option of each kind, and what they mean."""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_sampling_options(parser)
    return parser.parse_args(list(words))


def test_every_field_has_a_row_and_every_row_a_field():
    assert {field.name for field in fields(SamplingParams)} == SAMPLING.keys() - {"bad_words"} | INSIDE


@pytest.mark.parametrize("name", [name for name, row in SAMPLING.items() if row.kind in ("number", "integer")])
def test_a_value_out_of_range_is_refused_with_its_remedy(name: str):
    row = SAMPLING[name]
    most = 256 if name == "min_tokens" else row.high  # max_tokens where none is given
    for value in (row.low, most):
        SamplingParams(**{name: value})
    below = [] if row.low == -HUGE else [row.low - (1 if row.kind == "integer" or row.low < 0 else 1e-30 + row.low)]
    above = [] if row.high == HUGE else [most + (1 if row.kind == "integer" else 1e-6)]
    for value in [*below, *above]:
        with pytest.raises(RequestError, match=name) as caught:
            SamplingParams(**{name: value})
        assert row.remedy
        assert row.remedy in str(caught.value)


@pytest.mark.parametrize("name", SAMPLING)
def test_every_parameter_has_an_option_that_reaches_it(name: str):
    row = SAMPLING[name]
    word, value = GIVEN[row.kind]
    value, word = (1.5, "1.5") if name == "dry_base" else (value, word)
    option = f"--{name.replace('_', '-')}"
    arguments = parsed(option if word is None else f"{option}={word}")
    assert sampling_fields(arguments) == {name: value}
    if name != "bad_words":
        found = getattr(sampling_params(arguments), name)
        wanted = tuple(value.items()) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
        assert found == wanted


def test_options_repeat_and_omitted_ones_keep_their_defaults():
    assert sampling_fields(parsed()) == {}
    arguments = parsed("--stop", "a", "--stop", "b", "--stop-token-ids", "1 2", "--stop-token-ids", "3", "-n", "5")
    assert sampling_fields(arguments) == {"stop": ["a", "b"], "stop_token_ids": [1, 2, 3], "max_tokens": 5}
    assert sampling_params(arguments, temperature=0.25) == SamplingParams(
        stop=("a", "b"), stop_token_ids=(1, 2, 3), max_tokens=5, temperature=0.25
    )


@pytest.mark.parametrize("words", [["--logit-bias", "7"], ["--stop-token-ids", "a"], ["--top-p", "x"]])
def test_an_unreadable_value_is_refused(words: list[str]):
    with pytest.raises(argparse.ArgumentError, match=words[1]):
        parsed(*words)


def test_the_page_has_a_row_for_every_option():
    page = CLI.read_text(encoding="utf-8")
    defaults = SamplingParams()
    for name, row in SAMPLING.items():
        option = rf"\| `(-n, )?--{name.replace('_', '-')}[ `].*"
        [line] = [line for line in page.partition("### sampling")[2].splitlines() if re.fullmatch(option, line)]
        _, meaning, default = (cell.strip() for cell in line.strip("|").split(" | "))
        assert meaning.removesuffix("; repeats") == row.help
        if row.kind in ("number", "integer") and name != "seed":
            assert float(default.split(",")[0]) == getattr(defaults, name)
