"""Words that an answer must not contain, as token ids for the sampler."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from infeng_core.api import RequestError

if TYPE_CHECKING:
    from infeng_core.api import SamplingParams, Tokenizer


def bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return SamplingParams' ``bad_words_ids``: each word as tokenized at the start of a word and, if different,
    within.

    Other token sequences with the same text are not included. Raises RequestError.
    """
    from infeng_core.api.servers import MOST_BAD_CHARACTERS, MOST_BAD_WORDS

    if len(words) > MOST_BAD_WORDS:
        raise RequestError("bad_words", f"{len(words)} are more than {MOST_BAD_WORDS}", "give fewer")
    if (length := sum(map(len, words))) > MOST_BAD_CHARACTERS:
        raise RequestError("bad_words", f"they have {length} characters", f"give at most {MOST_BAD_CHARACTERS}")
    if any(not word.strip() for word in words):
        raise RequestError("bad_words", "a word is empty", "leave it out")
    texts = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
    found: list[tuple[int, ...]] = []
    encoded = iter(tokenizer.encode(texts))
    for within, start in zip(encoded, encoded, strict=True):
        plain, spaced = (_bare(ids, tokenizer) for ids in (within, start))
        found += [plain] if plain else []
        # A space that becomes a separate token forbids nothing beyond the word alone.
        found += [spaced] if spaced and len(spaced) == len(plain) and spaced[0] != plain[0] else []
    return tuple(found)


def drop_bad_words(arguments: argparse.Namespace, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Return ``params`` with the words of ``--bad-words``; raises RequestError."""
    if not arguments.bad_words:
        return params
    return replace(params, bad_words_ids=bad_words(arguments.bad_words, tokenizer))


def _bare(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of a text without the tokenizer's surrounding tokens."""
    begin = 1 if ids and ids[0] == tokenizer.bos_id else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos_id else len(ids)
    return tuple(ids[begin:end])
