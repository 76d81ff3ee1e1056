"""On real programs and an agent's calls, drafts save more steps than those of the text alone; in prose they cost none.

The price of a row is given, so that nothing depends on a machine: a step with k guesses takes 1 + PRICE * k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.load.draft_texts import TEXTS
from infeng_suffix.drafter import SuffixDrafter
from infeng_suffix.ngrams import Ngrams
from infeng_suffix.store import Store
from tokenizers import Tokenizer

from infeng_core.api.engines import DraftedRequest
from infeng_core.scheduling.drafts import Guesses

PRICE = 0.08
"""What a further row adds to a step of one row: 16 rows of TinyLlama take 2.3 times as long as one on two cores."""

Ids = list[tuple[list[int], list[int]]]


def pays(chances: Sequence[float]) -> int:
    """Return the number of guesses with the most tokens a second, as ``Payoff`` does by the cost model."""
    expected, chance, best, count = 1.0, 1.0, 1.02, 0
    for guesses, right in enumerate(chances, 1):
        chance *= right
        expected += chance
        if expected / (1 + PRICE * guesses) > best:
            best, count = expected / (1 + PRICE * guesses), guesses
    return count


def speed(make: Callable[[list[int]], Guesses], turns: Ids) -> float:
    """Return the tokens for the time of a step without guesses, the first token of each answer not counted."""
    tokens, time = 0, 0.0
    for prompt, answer in turns:
        guesses = make(prompt)
        guesses.follow(answer[:1], 0)
        at = 1
        while at < len(answer):
            draft = guesses.draft[: len(answer) - at - 1]
            right = 0
            while right < len(draft) and draft[right] == answer[at + right]:
                right += 1
            time += 1 + PRICE * len(draft)
            guesses.follow(answer[at : at + right + 1], len(draft))
            at += right + 1
        tokens += len(answer) - 1
        guesses.end(answer)
    return tokens / time


@pytest.fixture
def turns(third_party: Path) -> Callable[[str], Ids]:
    """Return ``turns(text)``: the prompts and answers of some conversations."""
    tokenizer = Tokenizer.from_file(str(third_party / "tokenizer-tinyllama" / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def made(text: str) -> Ids:
        conversations = islice(TEXTS[text](str(third_party), 1), 6 if text == "agents" else 16)
        return [(ids(turn.prompt), ids(turn.answer)) for conversation in conversations for turn in conversation]

    return made


def suffix(store: Store) -> Callable[[list[int]], Guesses]:
    request = DraftedRequest("x", "", (), pays)
    return lambda prompt: Guesses(SuffixDrafter(store, prompt), None, request=lambda: request)


def ngram(prompt: list[int], most: int | None = None) -> Guesses:
    return Guesses(Ngrams(prompt), most)


@pytest.mark.parametrize("text", ["edits", "agents"])
def test_edits_and_calls_are_half_as_fast_again_as_with_drafts_of_the_text_alone(text: str, turns: Any) -> None:
    given = turns(text)
    ours, theirs = speed(suffix(Store(1 << 26, 1 << 26)), given), speed(ngram, given)
    assert ours >= 1.5 * theirs, (ours, theirs)
    assert ours > speed(lambda prompt: ngram(prompt, 16), given)


def test_prose_is_no_slower_than_without_drafts(turns: Any) -> None:
    assert speed(suffix(Store(1 << 26, 1 << 26)), turns("prose")) >= 0.98


def test_calls_are_known_from_other_conversations_of_the_tenant(turns: Any) -> None:
    given = turns("agents")
    shared = speed(suffix(Store(1 << 26, 1 << 26)), given)
    alone = 0.0
    for turn in given:
        alone += speed(suffix(Store(1 << 26, 1 << 26)), [turn]) / len(given)
    assert shared > 1.1 * alone
