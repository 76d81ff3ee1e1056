"""Words that an answer shall not have, as the token ids by which the sampler keeps them out."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.errors import RequestError
from infeng_core.requests.checks import MOST_BAD_CHARACTERS, MOST_BAD_WORDS
from infeng_core.requests.tokenizer import Tokenizer


def bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return SamplingParams' ``bad_words_ids``: each word as it is at the start of a word and, if that differs, within.

    Another spelling of a word in tokens is not among them. Raises RequestError.
    """
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
        # A space that becomes a token of its own forbids nothing that the word alone does not.
        found += [spaced] if spaced and len(spaced) == len(plain) and spaced[0] != plain[0] else []
    return tuple(found)


def _bare(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of a text without what the tokenizer puts around it."""
    begin = 1 if ids and ids[0] == tokenizer.bos_id else 0
    end = len(ids) - 1 if len(ids) > begin and ids[-1] == tokenizer.eos_id else len(ids)
    return tuple(ids[begin:end])
