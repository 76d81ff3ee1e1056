"""Stop strings: the returned text never contains one, for any pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from infeng_core.requests.stops import StopStrings

letters = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character: the first stop string to be complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=8))
@example(text="abba", stops=["bb", "b"], cuts=[1, 2])
@example(text="aabab", stops=["abab", "ba"], cuts=[])
def test_any_pieces_give_the_text_before_the_first_complete_stop_string(text, stops, cuts):
    finder = StopStrings(stops)
    given_out, stopped = "", False
    bounds = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    for begin, end in pairwise(bounds):
        piece, stopped = finder.push(text[begin:end])
        given_out += piece
        assert not any(stop in given_out for stop in stops)
        if stopped:
            break
    if not stopped:
        given_out += finder.finish()
    assert (given_out, stopped) == expected(text, stops)


def test_only_what_could_begin_a_stop_string_is_held_back():
    finder = StopStrings(["\n\nQ:"])
    assert finder.push("yes.\n") == ("yes.", False)
    assert finder.push("\nNo") == ("\n\nNo", False)
    assert finder.push("\n\nQ") == ("", False)
    assert finder.finish() == "\n\nQ"
