"""Patterns of strangers: the same answers as Python's ``re``, and an answer in bounded time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infeng_core.formats.adapters.patterns import PatternError, fullmatch, matches_end

ATOMS = [
    "a",
    "b",
    ".",
    r"\.",
    "[ab]",
    "[^a]",
    "[a-c.]",
    r"\d",
    r"\W",
    r"[\w.]",
    "(a|b)",
    "(?:ab|a|)",
    "(?:.*b)",
    "1",
    "é",
]
PLACES = ["^", "$", r"\b", r"\B", "(?!ab)", "(?=a)", "(?!.*b$)", ""]
REPEATS = ["", "", "*", "+", "?", "{0,2}", "*?", "+?", "{2}", "{1,}?"]

piece = st.builds("".join, st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS))) | st.sampled_from(PLACES)
simple = st.lists(piece, max_size=4).map("".join)
grouped = st.builds(lambda inner, repeat: f"({inner}){repeat}", simple, st.sampled_from(REPEATS))
either = st.builds(lambda one, other: f"{one}|{other}", simple, simple)
pattern = st.lists(simple | grouped | either, min_size=1, max_size=3).map("".join)


@settings(max_examples=600, deadline=None)
@given(pattern=pattern, text=st.text("ab1.é_", min_size=1, max_size=7), start=st.integers(0, 3))
def test_it_matches_what_re_matches(pattern: str, text: str, start: int) -> None:
    start = min(start, len(text))
    assert fullmatch(pattern, text, start) == (re.compile(pattern).fullmatch(text, start) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*" * 30 + "x",
        "((a*)*)*x",
        "(a|a|aa)+x",
        "((((a{1,1000}){1,1000}){1,1000}){1,1000})x",
        "a?" * 60 + "a" * 60 + "x",
        "(?:.*.*.*.*.*.*.*.*.*.*=)x",
        "(?!(a*)*b)(a*)*x",
        "(a{4294967290,}){4294967290,}",
        "(|a|b|)*" * 50 + "x",
    ],
)
def test_patterns_on_which_backtracking_never_ends_are_answered(pattern: str) -> None:
    assert not fullmatch(pattern, "a" * 60)
    assert not matches_end(pattern, ".".join(["aaaa"] * 12))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "is no regular expression"),
        ("*a", "is no regular expression"),
        (r"(?P<a>x)(?P<a>y)*", "is no regular expression"),
        (r"(a)\1*", "groupref"),
        (r"(?<=a)b*", "assert"),
        (r"(?>a*)b", "atomic_group"),
        (r"a*+b", "possessive_repeat"),
        (r"(?i)a*", "sets flags"),
        (r"(?i:a*)", "subpattern"),
        (r"(a)?(?(1)b|c)", "groupref_exists"),
        ("a" * 5000, "it may have 4096"),
        ("(" * 3000 + ")" * 3000, "it may have 4096"),
        ("(" * 1500 + ")" * 1500, "is no regular expression"),
        ("(a*" * 240 + ")" * 240, "nested too deeply|no regular expression"),
    ],
)
def test_what_is_no_pattern_or_cannot_be_bounded_is_an_error(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        fullmatch(pattern, "a")


def test_a_name_without_bounds_is_an_error() -> None:
    with pytest.raises(PatternError, match="a name of 600 characters"):
        fullmatch("a*", "a" * 600)


@pytest.mark.parametrize(
    ("pattern", "name", "wanted"),
    [
        ("q_proj", "model.layers.0.self_attn.q_proj", True),
        ("_proj", "model.layers.0.self_attn.q_proj", False),
        (r"layers\.\d+\..*", "model.layers.10.mlp.up_proj", True),
        ("^q_proj", "model.q_proj", False),
        ("^q_proj", "q_proj", True),
    ],
)
def test_the_end_of_a_name_is_matched_by_whole_segments(pattern: str, name: str, wanted: bool) -> None:
    assert matches_end(pattern, name) == wanted == (re.match(rf"(.*\.)?({pattern})$", name) is not None)
