"""The store keeps tenants apart and its memory within bounds."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import infeng_suffix
import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_suffix.drafter import WINDOW, SuffixDrafter
from infeng_suffix.index import DEPTH, LONG
from infeng_suffix.store import SLICE, TOKEN_BYTES, Store

from infeng_core.api.engines import DraftedRequest

ANSWER = list(range(100, 140))
PROMPT = list(range(40))


def all_pay(chances: Sequence[float]) -> int:
    return len(chances)


def owner(tenant: str = "", salt: str = "", *adapters: tuple[str, float]) -> DraftedRequest:
    return DraftedRequest(tenant, salt, adapters, all_pay)


def start(store: Store, request: DraftedRequest, prompt: Sequence[int] = PROMPT) -> SuffixDrafter:
    drafter = SuffixDrafter(store, prompt)
    drafter.begin(request)
    return drafter


def answer(
    store: Store, request: DraftedRequest, tokens: Sequence[int] = ANSWER, prompt: Sequence[int] = PROMPT
) -> SuffixDrafter:
    """Run a request to its end."""
    drafter = start(store, request, prompt)
    for token in tokens:
        drafter.extend([token])
    drafter.end(tokens)
    return drafter


def asked(store: Store, request: DraftedRequest, known: int = 5) -> list[int]:
    """Return the draft of another request of the same prompt after the first tokens of ``ANSWER``."""
    drafter = start(store, request)
    drafter.extend(ANSWER[:known])
    return drafter.draft(16)


def test_an_earlier_answer_is_drafted_and_the_draft_goes_on_as_it_did() -> None:
    store = Store(1 << 20, 1 << 20)
    assert asked(store, owner()) == []
    answer(store, owner())
    assert asked(store, owner()) == ANSWER[5:21]
    assert asked(store, owner(), known=1) == ANSWER[1:17], "the end of the prompt is known with the answer"


OWNERS = {
    "another tenant": owner("b", "s", ("x", 1.0)),
    "another salt": owner("a", "t", ("x", 1.0)),
    "another adapter": owner("a", "s", ("y", 1.0)),
    "another weight": owner("a", "s", ("x", 0.5)),
    "the base": owner("a", "s"),
    "one more adapter": owner("a", "s", ("x", 1.0), ("y", 1.0)),
    "names that run together": owner("as", "", ("x", 1.0)),
    "no names": owner(),
}


@pytest.mark.parametrize("other", OWNERS)
def test_nothing_of_a_tenant_salt_or_set_of_adapters_reaches_another(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = owner("a", "s", ("x", 1.0))
    plain, store = Store(1 << 20, 1 << 20), Store(1 << 20, 1 << 20)
    for _ in range(3):
        answer(store, victim)
    running = start(store, victim)  # nor what is being written
    running.extend(ANSWER)
    attacker = OWNERS[other]
    # The attacker knows all but the end of the answer, and sees what is drafted, and how often it was right.
    for known in range(1, len(ANSWER)):
        assert asked(store, attacker, known) == asked(plain, attacker, known) == []
    theirs, ours = store.open(attacker), plain.open(attacker)
    assert theirs.chances._rates == ours.chances._rates and theirs.chances._counts == ours.chances._counts
    assert theirs.index is not store.open(victim).index
    touched: list[Any] = []
    monkeypatch.setattr(type(running._shelf.index), "matches", lambda self, text: touched.append(self) or [])  # type: ignore[union-attr]
    asked(store, attacker)
    assert touched == [store.open(attacker).index]
    assert asked(store, victim) == []  # by the patch
    assert touched[-1] is store.open(victim).index


def test_the_oldest_unused_answers_of_a_tenant_give_way_first() -> None:
    store = Store(1 << 20, 200 * TOKEN_BYTES)
    texts = {name: list(range(base, base + 60)) for name, base in (("a", 1000), ("b", 2000), ("c", 3000))}

    def is_known(name: str) -> bool:
        drafter = start(store, owner(), [])
        drafter.extend(texts[name][5:10])
        found = drafter.draft(2)
        drafter.end([])
        return found == texts[name][10:12]

    answer(store, owner(), texts["a"], [])
    answer(store, owner(), texts["b"], [])
    assert is_known("a") and is_known("b") and is_known("a")  # a was used last
    answer(store, owner(), texts["c"], [])
    answer(store, owner(), list(range(4000, 4060)), [])
    assert [is_known(name) for name in "abc"] == [True, False, True]
    assert store.nbytes <= 200 * TOKEN_BYTES


def test_the_tenant_that_was_unused_longest_gives_way_first_and_is_forgotten() -> None:
    store = Store(250 * TOKEN_BYTES, 250 * TOKEN_BYTES)
    for tenant in ("a", "b", "c"):
        answer(store, owner(tenant), list(range(60)), [])
    assert store.tenants == ("a", "b", "c")
    answer(store, owner("a"), [1, 2], [])
    assert store.tenants == ("b", "c", "a")
    answer(store, owner("d"), list(range(110)), [])
    assert store.bytes_of("b") < 59 * TOKEN_BYTES and store.bytes_of("c") == 59 * TOKEN_BYTES
    answer(store, owner("d"), list(range(50)), [])
    assert store.tenants[0] == "c" and "b" not in store.tenants
    assert store.bytes_of("b") == 0


def test_a_tenant_takes_no_more_than_its_share_however_much_it_writes() -> None:
    store = Store(1000 * TOKEN_BYTES, 300 * TOKEN_BYTES)
    answer(store, owner("quiet"), ANSWER, [])
    random = np.random.default_rng(0)
    for salt in range(40):
        answer(store, owner("loud", str(salt)), random.integers(0, 1000, 97).tolist(), [])
        assert store.bytes_of("loud") <= 300 * TOKEN_BYTES
    assert asked(store, owner("quiet"))[:3] == ANSWER[5:8]


def test_running_texts_beyond_the_bound_are_not_indexed_and_harm_nothing() -> None:
    store = Store(100 * TOKEN_BYTES, 100 * TOKEN_BYTES)
    drafters = [start(store, owner(), list(range(60))) for _ in range(4)]
    for drafter in drafters:
        drafter.extend([1])
        drafter.draft(4)
        assert store.nbytes <= 100 * TOKEN_BYTES
    for drafter in drafters:
        drafter.extend([2, 3])
        drafter.end([1, 2, 3])
    assert store.nbytes <= 100 * TOKEN_BYTES
    for salt in range(20):  # what had no room is no burden later
        answer(store, owner("", str(salt)), list(range(50)), [])
        assert 0 < store.nbytes <= 100 * TOKEN_BYTES


def test_a_long_prompt_is_read_in_slices_and_only_its_end() -> None:
    store = Store(1 << 30, 1 << 30)
    drafter = start(store, owner(), [*range(10, 50), *range(1000, 1000 + WINDOW)])
    drafter.extend([5])
    assert store.nbytes == SLICE * TOKEN_BYTES
    for _ in range(WINDOW // SLICE):
        drafter.extend([5])
    assert store.nbytes == (WINDOW + WINDOW // SLICE) * TOKEN_BYTES
    drafter.extend(range(20, 30))
    assert drafter.draft(4) == []
    drafter.extend(range(1500, 1510))
    assert drafter.draft(4) == [1510, 1511, 1512, 1513]
    drafter.end([5])
    for _ in range(WINDOW // SLICE):
        answer(store, owner("other"), [1, 2], [])
    assert store.bytes_of("") <= (DEPTH + WINDOW // SLICE + 20) * TOKEN_BYTES, "the prompt is dropped, the answer kept"


@pytest.mark.slow
def test_bytes_are_no_less_than_what_python_takes() -> None:
    tokens = np.random.default_rng(0).integers(0, 100_000, (24, 300)).tolist()  # grams hardly repeat: the worst
    for count in (5, 11, 24):
        tracemalloc.start()
        store = Store(1 << 30, 1 << 30)
        for index, one in enumerate(tokens[:count]):
            answer(store, owner("", str(index % 3)), one, [])
        assert tracemalloc.get_traced_memory()[0] <= store.nbytes
        tracemalloc.stop()


@pytest.mark.parametrize("tokens", ["random", "equal", "period"])
def test_a_long_text_takes_bounded_memory_and_work(tokens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 tokens through a store for 10,000, with every look-up: places visited by a token do not grow."""
    store = Store(10_000 * TOKEN_BYTES, 10_000 * TOKEN_BYTES)
    random = np.random.default_rng(1)
    made = {
        "random": random.integers(0, 50, 100_000),
        "equal": np.full(100_000, 7),
        "period": np.arange(100_000) % 1000,
    }[tokens].tolist()
    visits = 0
    index_type = type(store.open(owner("probe")).index)
    inner = index_type._match

    def counted(self: Any, place: int, text: Any) -> Any:
        nonlocal visits
        visits += 1
        return inner(self, place, text)

    monkeypatch.setattr(index_type, "_match", counted)
    steps = 0
    for begin in range(0, 100_000, 4000):
        drafter = start(store, owner(), [])
        part = made[begin : begin + 4000]
        for at in range(0, 4000, 8):
            drafter.extend(part[at : at + 8])
            if at % 64 == 0:
                drafter.draft(16)
                steps += 1
            assert store.nbytes <= 10_000 * TOKEN_BYTES
        drafter.end(part)
    assert steps <= visits * (tokens != "random") + steps * (tokens == "random")
    assert visits <= 16 * steps


class Reader:
    """A drafter's work on a text, guess after guess."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.right = self.steps = 0

    def follow(self, request: DraftedRequest, tokens: Sequence[int]) -> None:
        """Draft ``tokens`` as an engine does: a step gives one token and the guesses that are right."""
        drafter = start(self.store, request)
        at = 0
        while at < len(tokens):
            draft = drafter.draft(16) if at else []
            pairs = itertools.zip_longest(draft, tokens[at : at + len(draft)])
            right = next((index for index, (guess, token) in enumerate(pairs) if guess != token), len(draft))
            drafter.extend(tokens[at : at + right + 1])
            at += right + 1
            self.right, self.steps = self.right + right, self.steps + 1
        drafter.end(tokens)


def test_a_repeated_answer_takes_a_sixteenth_of_the_steps() -> None:
    reader = Reader(Store(1 << 24, 1 << 24))
    tokens = np.random.default_rng(0).integers(0, 1000, 340).tolist()
    reader.follow(owner(), tokens)
    first = reader.steps
    reader.follow(owner(), tokens)
    assert first > 300 and reader.steps - first <= 2 + 340 // 17


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["", "s"]),
            st.lists(st.integers(0, 3), max_size=60),
            st.lists(st.integers(0, 3), max_size=60),
        ),
        max_size=12,
    ),
    st.integers(5, 150),
    st.integers(5, 150),
)
def test_any_run_of_requests_keeps_the_bounds_and_the_count(
    runs: list[tuple[str, str, list[int], list[int]]], most: int, most_of_one: int
) -> None:
    store = Store(most * TOKEN_BYTES, most_of_one * TOKEN_BYTES)
    open_: list[tuple[SuffixDrafter, list[int]]] = []
    for tenant, salt, prompt, tokens in runs:
        drafter = start(store, owner(tenant, salt), prompt)
        for at in range(0, len(tokens), 3):
            drafter.extend(tokens[at : at + 3])
            assert all(0 <= token <= 3 for token in drafter.draft(16))
            check(store, most, most_of_one)
        open_.append((drafter, tokens))
        if len(open_) > 2:
            ended, its = open_.pop(0)
            ended.end(its)
            check(store, most, most_of_one)
    for ended, its in open_:
        ended.end(its)
    for _ in range(3):
        answer(store, owner("z"), [1, 2, 3, 1, 2, 3], [])
        check(store, most, most_of_one)


def check(store: Store, most: int, most_of_one: int) -> None:
    """The counts are those of the texts, and within bounds."""
    total = 0
    for tenant in store._tenants.values():
        held = sum(text.held for shelf in tenant.shelves.values() for text in shelf.index.texts.values())
        assert held == tenant.tokens <= most_of_one
        total += held
        kept = {number for shelf in tenant.shelves.values() for number in shelf.index.texts}
        assert {number for _, number in tenant.answers} <= kept
        for shelf in tenant.shelves.values():
            codes = list(flat(shelf.index._places.values()))
            assert len(codes) <= 2 * sum(text.held for text in shelf.index.texts.values())
            assert {code >> 32 for code in codes} <= set(shelf.index.texts)
    assert total == store._tokens <= most


def flat(found: Any) -> Iterator[int]:
    for places in found:
        yield from [places] if isinstance(places, int) else places


def test_tokens_drawn_past_the_end_of_an_answer_are_not_kept() -> None:
    store = Store(1 << 20, 1 << 20)
    drafter = start(store, owner())
    drafter.extend([*ANSWER[:20]])
    drafter.extend([-1])  # a token that could not be drawn
    drafter.end(ANSWER[:20])
    later = start(store, owner())
    later.extend(ANSWER[20 - LONG - 3 : 18])
    assert later.draft(16) == ANSWER[18:20]


def test_ctrl_c_between_any_two_lines_leaves_a_store_that_works_within_its_bounds() -> None:
    package = str(Path(infeng_suffix.__file__).parent)
    store = Store(300 * TOKEN_BYTES, 200 * TOKEN_BYTES)
    left = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    interrupts = 0
    random = np.random.default_rng(0)
    for number in range(400):
        left = int(random.integers(1, 1500))
        drafter, tokens = SuffixDrafter(store, list(range(50))), random.integers(0, 9, 60).tolist()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            drafter.begin(owner("ab"[number % 2], str(number % 3)))
            for token in tokens:
                drafter.extend([token])
                drafter.draft(4)
            drafter.end(tokens)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.settrace(before)
        drafter.end(tokens)
    assert interrupts > 100
    for tenant in "ab":
        for salt in "012":
            answer(store, owner(tenant, salt), ANSWER)
    assert store.nbytes <= 300 * TOKEN_BYTES
    fresh = owner("a", "new")
    answer(store, fresh)
    assert asked(store, fresh) == ANSWER[5:21]
