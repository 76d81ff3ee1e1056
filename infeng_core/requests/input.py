"""Callers' input becomes requests with token ids, or an error before anything runs."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from infeng_core.errors import RequestError
from infeng_core.requests.checks import is_unicode, shown
from infeng_core.requests.request import Adapters, Request, SamplingParams
from infeng_core.requests.tokenizer import Tokenizer

Prompt = str | Iterable[int] | Request
"""A text, token ids, or a request that carries its own parameters."""

Prompts = Prompt | Iterable[str] | Iterable[Iterable[int]] | Iterable[Request]
"""One prompt or several; integers are one prompt."""

AdaptersOf = Adapters | Sequence[Adapters | None] | None
"""Adapters for all prompts, or a list with one entry for each."""

CHARACTERS_PER_TOKEN = 32
"""A text with more characters than this per token of the context is refused before it is tokenized: no prose and no
program comes near, and the tokenizer would take seconds to find out."""


class InputProcessor:
    """Tokenizes and checks prompts for one engine."""

    def __init__(self, tokenizer: Tokenizer, *, vocab: int, bos_id: int | None, context: int, bound: str) -> None:
        """Accept prompts of ids below ``vocab`` and of fewer than ``context`` tokens.

        bos_id: the start of an empty text if the tokenizer adds nothing. bound: the setting that limits the context.
        """
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._bos_id = bos_id
        self._context = context
        self._bound = bound

    def take(self, prompts: Any, params: SamplingParams | None, adapters: Any) -> list[tuple[Request, list[int]]]:
        """Return every prompt as a request with its ids; raises RequestError for one that cannot be served."""
        several = _several(prompts)
        named = _adapters_of(adapters, len(several))
        requests = [Request.of(prompt, params, adapter) for prompt, adapter in zip(several, named, strict=True)]
        encoded = self._encoded(requests)
        taken = []
        for request in requests:
            prompt = request.prompt
            ids = next(encoded[request.parse_special]) if isinstance(prompt, str) else list(prompt)
            if not ids and prompt == "" and self._bos_id is not None:
                ids = [self._bos_id]
            self._check(request, ids)
            taken.append((request, ids))
        return taken

    def joined(self, prompt: Any, continuation: Any, adapter: Any) -> tuple[Request, int]:
        """Return a prompt and its continuation as one request, and the index of the continuation's first token."""
        taken = self.take(prompt, None, adapter)
        if len(taken) != 1:
            raise RequestError("prompt", f"there are {len(taken)}", "give one")
        [(first, before)] = taken
        if isinstance(first.prompt, str) and isinstance(continuation, str):
            [(_, ids)] = self.take(replace(first, prompt=first.prompt + continuation), None, None)
        elif isinstance(first.prompt, str) or isinstance(continuation, str):
            raise RequestError("continuation", "it and the prompt are not alike", "give two texts, or ids twice")
        else:
            ids = [*before, *Request.of(continuation).prompt]
        pairs = enumerate(zip(before, ids, strict=False))
        same = next((index for index, (old, new) in pairs if old != new), min(len(before), len(ids)))
        params = SamplingParams(temperature=0.0, max_tokens=1)
        return replace(first, prompt=tuple(ids), params=params), max(1, same)

    def _encoded(self, requests: list[Request]) -> dict[bool | None, Iterator[list[int]]]:
        """Return the ids of all texts, in their order, by their requests' ``parse_special``."""
        texts: dict[bool | None, list[str]] = {}
        for request in requests:
            if isinstance(request.prompt, str):
                self._check_text(request.prompt)
                texts.setdefault(request.parse_special, []).append(request.prompt)
        encode = self._tokenizer.encode
        return {
            special: iter(encode(several) if special is None else encode(several, parse_special=special))
            for special, several in texts.items()
        }

    def _check_text(self, text: str) -> None:
        most = CHARACTERS_PER_TOKEN * self._context
        if len(text) > most:
            why = f"the context is {self._context} tokens ({self._bound}), so at most {most} characters are read"
            raise RequestError(f"prompt of {len(text)} characters", why, "shorten the prompt")
        if not is_unicode(text):
            raise RequestError("prompt", "it is not valid Unicode", "give text, decoded from UTF-8")

    def _check(self, request: Request, ids: list[int]) -> None:
        if not ids:
            raise RequestError("prompt", "it is empty and the model has no beginning-of-text token", "give some text")
        if not 0 <= min(ids) <= max(ids) < self._vocab:
            wrong = next(token for token in ids if not 0 <= token < self._vocab)
            why = f"token {shown(wrong)} is not in the vocabulary of {self._vocab}"
            raise RequestError("prompt", why, "check the tokenizer")
        if len(ids) >= self._context:
            raise RequestError(
                f"prompt of {len(ids)} tokens",
                f"the context is {self._context} tokens ({self._bound}) and one must be free for the answer",
                "shorten the prompt",
            )
        for name, tokens in request.params.named_ids().items():
            if (token := max(tokens, default=0)) >= self._vocab:
                why = f"token {token} is not in the vocabulary of {self._vocab}"
                raise RequestError(name, why, "leave it out")


def _several(prompts: Any) -> list[Any]:
    """Return the prompts; a text, a request or integers are a single one."""
    if isinstance(prompts, (str, Request)):
        return [prompts]
    try:
        if isinstance(prompts, (bytes, bytearray, abc.Mapping, abc.Set)):
            raise TypeError
        several = list(prompts)
    except TypeError as error:
        remedy = "give a text, token ids, a Request, or a list of those"
        raise RequestError("prompts", f"{shown(prompts)} is neither a prompt nor several", remedy) from error
    is_ids = bool(several) and hasattr(several[0], "__index__") and not isinstance(several[0], (str, Request))
    return [several] if is_ids else several


def _adapters_of(adapters: Any, count: int) -> list[Any]:
    """Return the adapters of each of ``count`` prompts: one for all, or a list with one for each."""
    if isinstance(adapters, abc.Iterator):
        adapters = list(adapters)
    if not isinstance(adapters, Sequence) or isinstance(adapters, str) or (adapters and _is_pair(adapters[0])):
        return [adapters] * count
    if len(adapters) != count:
        why = f"{len(adapters)} for {count} prompts"
        raise RequestError("adapters", why, "give one for all, or a list with one for each prompt; None is the base")
    return list(adapters)


def _is_pair(item: Any) -> bool:
    """Return whether ``item`` is a name with a weight."""
    return (
        isinstance(item, (tuple, list))
        and len(item) == 2
        and isinstance(item[0], str)
        and not isinstance(item[1], (str, tuple, list))
    )
