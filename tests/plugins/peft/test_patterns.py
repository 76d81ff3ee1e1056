"""Untrusted patterns: the same matches as Python's ``re``, in bounded time."""

import re
import time
from typing import NoReturn

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_peft import patterns
from infeng_peft.patterns import Patterns

MODULES = [
    f"model.layers.{layer}.{module}"
    for layer in range(80)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
]


class RefusedError(Exception):
    pass


def refuse(pattern: str, why: str) -> NoReturn:
    raise RefusedError(f"{pattern[:40]}: {why}")


def compiled(*texts: str) -> Patterns:
    return Patterns(texts, refuse)


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
PLACES = ["^", "$", r"\b", r"\B", ""]
REPEATS = ["", "", "*", "+", "?", "{0,2}", "*?", "+?", "{2}", "{1,}?"]

piece = st.builds("".join, st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS))) | st.sampled_from(PLACES)
simple = st.lists(piece, max_size=4).map("".join)
grouped = st.builds(lambda inner, repeat: f"({inner}){repeat}", simple, st.sampled_from(REPEATS))
either = st.builds(lambda one, other: f"{one}|{other}", simple, simple)
pattern = st.lists(simple | grouped | either, min_size=1, max_size=3).map("".join)


ahead = st.builds("(?!{}){}".format, pattern, st.sampled_from(["", "^"]))
looking = st.builds("".join, st.tuples(st.sampled_from(["", "^"]), st.lists(ahead, max_size=2).map("".join), pattern))
choosing = pattern | st.lists(looking, min_size=1, max_size=3).map("|".join)


@settings(max_examples=examples(600), deadline=None)
@given(pattern=choosing, text=st.text("ab1._", min_size=1, max_size=7))  # \w and \d are of ASCII, as module names are
def test_patterns_match_the_same_names_as_re(pattern: str, text: str) -> None:
    assert (compiled(pattern).fullmatch(text) == 0) == (re.fullmatch(pattern, text) is not None)


@settings(max_examples=examples(300), deadline=None)
@given(texts=st.lists(choosing, min_size=1, max_size=5), name=st.text("ab1._", min_size=1, max_size=7))
def test_the_first_pattern_that_fits_an_end_decides(texts: list[str], name: str) -> None:
    fitting = [place for place, text in enumerate(texts) if re.match(rf"(.*\.)?({text})$", name)]
    assert compiled(*texts).matches_end(name) == (fitting[0] if fitting else None)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"^(?!.*vision).*(q_proj|v_proj)$", ["a.q_proj", "v_proj"]),
        (r"(?!.*vision)(?!.*v_proj).*_proj", ["a.q_proj"]),
        (r"(?!.*v_proj)a.*|vision\.v.*", ["a.q_proj", "vision.v_proj"]),
        (r"(?!a|v)v?.*", []),
        (r"^(?![)\](|]).*[|)].*|(?!\(|.*\.).*", ["v_proj"]),
    ],
)
def test_negative_lookaheads_at_the_beginning_are_supported(pattern: str, names: list[str]) -> None:
    given = ["a.q_proj", "v_proj", "vision.v_proj", "vision.q_proj"]
    assert [name for name in given if compiled(pattern).fullmatch(name) == 0] == names
    assert [name for name in given if re.fullmatch(pattern, name)] == names


HOSTILE = [
    "(?!" + ".*" * 100 + "x)" + ".*" * 100 + "y",
    "(?!a)" * 800,
    "|".join(["(?!a.*b)a"] * 300),
    ".*" * 12,
    ".*" * 2048,
    "(.*)*" * 30 + "x",
    "((a*)*)*x",
    "(a|a|aa)+x",
    "((((a{1,9}){1,9}){1,9}){1,1})x",
    "a?" * 60 + "a" * 60 + "x",
    "(?:.*.*.*.*.*.*.*.*.*.*=)x",
    "(|a|b|)*" * 50 + "x",
    "(?:[a-m]?[n-z._0-9]?){600}x",
    ".*[aeiou].{50}x",
    "(a*" * 1000 + ")" * 1000,
    "a" * 4096,
]


@pytest.mark.parametrize("pattern", HOSTILE, ids=lambda pattern: pattern[:20])
def test_patterns_with_catastrophic_backtracking_are_matched(pattern: str) -> None:
    begin = time.thread_time()
    made = compiled(pattern)
    for name in MODULES:
        made.matches_end(name)
    assert time.thread_time() - begin < 1.0


def test_thousands_of_patterns_cost_hardly_more_than_one() -> None:
    begin = time.thread_time()
    made = compiled(*(f"layers.{layer}.self_attn.q_proj" for layer in range(patterns.MAX_COUNT)))
    assert [made.matches_end(name) for name in MODULES[:5]] == [0, None, None, None, 1]
    for name in MODULES:
        made.matches_end(name)
    assert time.thread_time() - begin < 2.0


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["q_proj"] * 5000, "one of 5000 patterns: 4096 are possible"),
        (["." * 4000] * 40, "one of 40 patterns: 4096 are possible, of 131072 characters"),
        (
            [f"{letter}((?:[a-m]?[n-z._0-9]?){{1000}})" for letter in "abcdef"],
            "too many states, alone or with the others",
        ),
        ([f"{number}(a|b){{500}}" for number in range(500)], "too many states, alone or with the others"),
    ],
)
def test_patterns_that_take_too_long_are_refused(texts: list[str], reason: str) -> None:
    begin = time.thread_time()
    with pytest.raises(RefusedError, match=reason):
        compiled(*texts)
    assert time.thread_time() - begin < 1.0


def test_too_little_memory_for_matching_is_an_error_and_not_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        """What RE2 gives where its automaton has no room for one more state: nothing, and no error."""

        def Match(self, text: str) -> None:  # noqa: N802
            return None

    made = compiled("q_proj")
    assert made.fullmatch("v_proj") is None
    monkeypatch.setattr(made, "_whole", [(Exhausted(), [0])])
    with pytest.raises(RefusedError, match=r"v_proj: cannot be compared .* in the memory"):
        made.fullmatch("v_proj")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "is no regular expression"),
        ("*a", "is no regular expression"),
        (r"(a)\1*", r"uses a backreference \(\\1\)"),
        ("(a)" * 10 + r"\10", r"uses a backreference \(\\1\)"),
        (r"(?P<a>x)(?P=a)", r"uses a backreference"),
        (r"(?=a)a*", r"uses a lookahead \(\(\?=\), which cannot be matched in linear time"),
        (r"b(?!a)b*", r"uses a negative lookahead that is not at the beginning \(\(\?!\)"),
        (r"(?:(?!a)b)*", r"uses a negative lookahead that is not at the beginning"),
        (r"(?!a(?!b)).*", r"uses a negative lookahead that is not at the beginning"),
        (r"(?!a)*b", r"uses a negative lookahead that is not at the beginning"),
        (r"(?i)(?!a)b|c", r"uses a negative lookahead that is not at the beginning"),
        (r"(?!a)(?<=b)c", r"uses a lookbehind"),
        (r"(?!(a)b", r"uses a negative lookahead"),
        (r"(?!a))b", "is no regular expression"),
        (r"(?<=a)b*", r"uses a lookbehind"),
        (r"(?<!a)b*", r"uses a negative lookbehind"),
        (r"(?>a*)b", r"uses an atomic group"),
        (r"a*+b", r"uses a possessive repeat"),
        (r"(a)?(?(1)b|c)", r"uses a condition"),
        (r"a{,5}", r"uses \{,, which is not supported"),
        (r"[[:alpha:]]", r"uses \[:, which is not supported"),
        (r"a\Z", "is no regular expression"),
        ("a{1001}", "is no regular expression"),
        ("\ud800", "not Unicode"),
        ("a" * 5000, "it may have 4096"),
        ("(" * 3000 + ")" * 3000, "it may have 4096"),
    ],
)
def test_an_invalid_or_unbounded_pattern_is_an_error(pattern: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        compiled(pattern)


@pytest.mark.parametrize("pattern", [r"\\1", r"[\]]:a", r"a{1,}", r"\.", "(?i)A", "(?:a)"])
def test_harmless_patterns_that_resemble_refused_ones_are_accepted(pattern: str) -> None:
    text = {r"\\1": r"\1", r"[\]]:a": "]:a", r"\.": "."}.get(pattern, "a")
    assert compiled(pattern).fullmatch(text) == 0 and re.fullmatch(pattern, text)


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
    found = compiled(pattern).matches_end(name) == 0
    assert found == wanted == (re.match(rf"(.*\.)?({pattern})$", name) is not None)
