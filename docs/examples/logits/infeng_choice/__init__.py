"""A logit processor: the answer is one of several texts. ``SamplingParams(processors={"choice": ("yes", "no")})``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from infeng_core.api import Adjustment, LogitProcessor, RequestError, Vocabulary, hookimpl


class Choices:
    """Makes the processors of one engine."""

    def __init__(self, before: str, vocabulary: Vocabulary) -> None:
        """Put ``before`` before each text."""
        self._before = before
        self._vocabulary = vocabulary

    def make(self, texts: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of one request, or say what is wrong with its argument."""
        if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError("choice", f"{texts!r} are no texts", 'give some: {"choice": ("yes", "no")}')
        tokenizer = self._vocabulary.tokenizer
        found = [tokenizer.encode([self._before + text], parse_special=False)[0] for text in texts]
        return Choice(self._vocabulary, [ids[ids[:1] == [tokenizer.bos_id] :] for ids in found])


class Choice:
    """Allows what goes on in one of several lists of ids, and at the end of one an end token."""

    def __init__(self, vocabulary: Vocabulary, choices: Sequence[Sequence[int]]) -> None:
        """choices: the ids of each text."""
        self._vocabulary = vocabulary
        self._choices = [tuple(ids) for ids in choices]
        self._tokens: tuple[int, ...] = ()

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that the request has gained."""
        self._tokens += tuple(tokens)

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the mask of what may come after the tokens and ``guesses``."""
        tokens = (*self._tokens, *guesses)
        begun = [ids for ids in self._choices if ids[: len(tokens)] == tokens]
        next_ = {ids[len(tokens)] for ids in begun if len(ids) > len(tokens)}
        if not next_ or tokens in begun:
            next_.update(self._vocabulary.ends)
        return Adjustment(self._vocabulary.mask(next_))


@hookimpl
def infeng_logit_processors(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logit processor."""
    return {"choice": partial(Choices, settings["before"] or "")}
