"""Where an activated adapter begins to act."""

from __future__ import annotations

import numpy as np
import pytest
from adapter_parts import Store, start
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from infeng_core.adapters.invocation import last_occurrence
from infeng_core.adapters.registry import Registry
from infeng_core.batch import RunningRequest, Segment, adapter_rows
from infeng_core.requests.request import Request


def found(prompt: list[int], invocation: tuple[int, ...]) -> int | None:
    return last_occurrence(np.array(prompt, np.int32), invocation)


@pytest.mark.parametrize(
    ("prompt", "invocation", "expected"),
    [
        ([1, 2, 3, 4], (2, 3), 1),
        ([2, 3, 1, 2, 3, 4], (2, 3), 3),
        ([2, 3, 4], (2, 3), 0),
        ([4, 2, 3], (2, 3), 1),
        ([2, 3], (2, 3), 0),
        ([2, 4, 3], (2, 3), None),
        ([4, 2], (2, 3), None),
        ([2], (2, 3), None),
        ([], (2, 3), None),
        ([1, 1, 1, 1], (1, 1), 2),
        ([5], (5,), 0),
    ],
)
def test_the_last_whole_occurrence_counts(prompt: list[int], invocation: tuple[int, ...], expected: int | None) -> None:
    assert found(prompt, invocation) == expected


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_it_is_where_a_search_from_the_end_finds_it(prompt: list[int], invocation: list[int]) -> None:
    size = len(invocation)
    places = [place for place in range(len(prompt) - size, -1, -1) if prompt[place : place + size] == invocation]
    assert found(prompt, tuple(invocation)) == (places[0] if places else None)


class Activated(Store):
    """A source whose adapters are invoked by the numbers in their names, as in "a-7-8"."""

    def read(self, source: str, *, scale: float):  # type: ignore[no-untyped-def]
        packed = super().read(source, scale=scale)
        object.__setattr__(packed, "invocation", tuple(map(int, source.split("-")[1:])))
        return packed


def registry() -> Registry:
    store = Activated()
    made = Registry(store.read, store.place, most=8, budget=None)
    for name in ("plain", "a-7-8", "b-9"):
        made.add(name, f"org/{name}")
    return made


def sequence(made: Registry, prompt: list[int], spec: object) -> RunningRequest:
    one = RunningRequest.start(1, Request(tuple(prompt)), prompt, len(prompt) + 4, seed=0)
    one.adapters = made.refer(spec, one.tokens[: len(prompt)])  # type: ignore[arg-type]
    while not one.adapters.acquire():
        mark = made.changes
        made.prefetch([one.adapters])  # type: ignore[list-item]
        made.wait(mark)
    return one


def names_by_row(one: RunningRequest, begin: int, end: int) -> list[list[str]]:
    """Return the adapters of each row of a segment of positions [begin, end)."""
    ranges = adapter_rows([Segment(one, 0, end - begin, begin, 0)])
    handles = {id(entry.resident.handle): entry.name for entry in one.adapters.entries}  # type: ignore[union-attr]
    return [
        [handles[id(rows.handle)] for rows in ranges if rows.row_begin <= row < rows.row_end]
        for row in range(end - begin)
    ]


def test_rows_get_the_adapters_that_act_on_them() -> None:
    made = registry()
    one = sequence(made, [1, 7, 8, 1, 7, 8, 9, 1], (("a-7-8", 1.0), ("plain", 1.0), ("b-9", 1.0)))
    every = names_by_row(one, 0, 8)
    assert every == [["plain"]] * 4 + [["a-7-8", "plain"]] * 2 + [["a-7-8", "plain", "b-9"]] * 2
    for begin in range(8):
        for end in range(begin + 1, 9):
            assert names_by_row(one, begin, end) == every[begin:end]
    assert names_by_row(one, 8, 10) == [every[-1]] * 2, "tokens after the prompt"
    known = one.adapters.known()  # type: ignore[union-attr]
    assert known is not None and [begin for _, _, begin in known] == [4, 0, 6]
    made.close()


def test_an_adapter_that_is_not_invoked_is_held_and_does_not_act() -> None:
    made = registry()
    one = sequence(made, [1, 7, 9], "a-7-8")
    assert names_by_row(one, 0, 5) == [[]] * 5
    assert one.adapters.known() == ()  # type: ignore[union-attr]
    assert [info.references for info in made.infos()] == [0, 1, 0]
    assert made.info("a-7-8").invocation == (7, 8)
    one.adapters.release()  # type: ignore[union-attr]
    assert one.adapters.known() == ()  # type: ignore[union-attr]
    one.adapters.close()  # type: ignore[union-attr]
    assert [info.references for info in made.infos()] == [0, 0, 0]
    made.close()


def test_a_reference_without_a_prompt_is_not_invoked() -> None:
    made = registry()
    assert start(made, "b-9").rows == ()
    assert len(start(made, "plain").rows) == 1
    made.close()
