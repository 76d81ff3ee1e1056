"""What a caller asks for and what comes back. Everything here is immutable."""

from __future__ import annotations

import math
import operator
from collections import abc
from collections.abc import Iterable
from ctypes import c_float
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import RequestError

Adapters = str | tuple[tuple[str, float], ...]
"""Which adapters answer: one by its name, or several that combine, each (name, weight)."""

FinishReason = Literal["stop", "length", "cancelled"]
"""``stop``: an end token or a stop string; ``length``: max_tokens or the end of the context; ``cancelled``."""

MAX_SEED = 2**64 - 1

MOST_LOGPROBS = 256
"""Likely tokens that are reported beside each token."""

MOST_STOPS = 64
"""Stop strings of a request ..."""

MOST_STOP_CHARACTERS = 4096
"""... and the characters in them together: every new piece of text is searched for each."""

_BELOW_1 = 1.0 - 2.0**-24  # the largest float32 below 1
_TINY = 2.0**-126
"""The smallest float32 of full precision. Numbers are used as float32, and checked as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and where a completion ends.

    Raises RequestError for a value out of range. docs/numerics.md gives the order in which the filters apply.
    """

    temperature: float = 1.0
    """0 is greedy; larger is more even. Like all numbers here it is used as float32."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities reach this sum, in (0, 1]; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one, in [0, 1); 0 drops none."""
    seed: int | None = None
    """In [0, 2^64): the same request with the same seed gives the same tokens in any batch; None draws one."""
    max_tokens: int = 256
    """Most new tokens."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion as an end-of-text token does."""
    ignore_eos: bool = False
    """Go on past the model's end-of-text tokens (for measurements)."""
    logprobs: int | None = None
    """Report each new token's log-probability and this many of the most likely tokens; None reports nothing."""
    prompt_logprobs: int | None = None
    """The same of each token of the prompt but its first. Takes more steps: logits of every row are wanted."""
    logits: bool = False
    """Report the logits that each new token was drawn from."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("temperature", _number("temperature", self.temperature, 0.0, math.inf, "0 is greedy, 0.7 to 1.0 is usual"))
        put("top_k", _integer("top_k", self.top_k, 0, 2**31 - 1, "0 keeps all tokens"))
        put("top_p", _number("top_p", self.top_p, _TINY, 1.0, "it must be above 0; 1 keeps all tokens"))
        put("min_p", _number("min_p", self.min_p, 0.0, _BELOW_1, "it must be below 1; 0 drops no token"))
        if self.seed is not None:
            put("seed", _integer("seed", self.seed, 0, MAX_SEED, "leave it out for a random one"))
        put("max_tokens", _integer("max_tokens", self.max_tokens, 1, 2**31 - 1, "ask for at least one token"))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                put(name, _integer(name, getattr(self, name), 0, MOST_LOGPROBS, "0 reports the token alone"))
        put("stop", _stops(self.stop))
        ids = _several("stop_token_ids", self.stop_token_ids, "give token ids")
        put("stop_token_ids", tuple(_integer("stop_token_ids", id_, 0, 2**31 - 1, "give token ids") for id_ in ids))


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with everything that belongs to it.

    A text is turned into ids by the engine's tokenizer (with a beginning-of-text token where the model wants one); ids
    are taken as they are.
    """

    prompt: str | tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    """Larger is more urgent; the built-in first-come scheduler does not look at it."""
    tenant: str = ""
    """Who asks, for schedulers that share fairly."""
    adapter: Adapters | None = None
    """Name of a loaded LoRA adapter, or ((name, weight), ...) of several that combine; None is the base model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapter", _adapters(self.adapter))
        if not isinstance(self.params, SamplingParams):
            raise RequestError("params", f"{type(self.params).__name__} is not SamplingParams", "give SamplingParams")
        if not isinstance(self.prompt, str):
            object.__setattr__(self, "prompt", _ids(self.prompt))

    @staticmethod
    def of(prompt: Request | str | Iterable[int], params: SamplingParams | None = None, adapter: Any = None) -> Request:
        """Return ``prompt`` as a request; one that already is a request keeps its own parameters and adapter."""
        if isinstance(prompt, Request):
            return prompt
        ids = prompt if isinstance(prompt, str) else _ids(prompt)
        return Request(ids, SamplingParams() if params is None else params, adapter=adapter)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    """Tokens that speculation guessed and a step verified."""
    accepted_tokens: int = 0
    """Those of the completion's tokens that had been guessed."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def acceptance(self) -> float | None:
        """Share of the guesses that were right and of use; None where nothing was guessed."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds of a request's way."""

    queued: float
    """From its submission to its first step."""
    first_token: float
    """From its submission to its first token (TTFT)."""
    total: float
    """From its submission to its end."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural log-probability by the model's logits, before temperature and filters.

    It is for reading: unlike the tokens it is not part of what is equal byte for byte on every machine.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, log-probability) of the most likely ones, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole answer to a request."""

    text: str
    """Continues the prompt: ``prompt + text`` reads as one text. Stop strings and special tokens are not in it."""
    token_ids: tuple[int, ...]
    """All new tokens, an end token included."""
    finish_reason: FinishReason
    usage: Usage
    seed: int
    """The seed that was used, drawn or given."""
    timings: Timings
    logprobs: tuple[Logprob, ...] = ()
    """Of each new token, where they were asked for."""
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    """Of each token of the prompt, where they were asked for; None for the first, which follows nothing."""
    logits: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """(new tokens, vocab) where they were asked for: what each was drawn from."""


def _number(name: str, value: Any, low: float, high: float, remedy: str) -> float:
    """Return ``value`` as a float if it is from ``low`` to ``high`` and finite, also as a float32."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer that no float can hold
        number = math.inf
    used = c_float(number).value
    if not (math.isfinite(used) and low <= used <= high) or 0.0 < abs(number) < _TINY:
        raise RequestError(name, f"{shown(value)} is out of range", remedy)
    return number


def _integer(name: str, value: Any, low: int, high: int, remedy: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise RequestError(name, f"{shown(value)} is not an integer from {low} to {high}", remedy)
    return number


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(_several("stop", stop, "give texts"))
    for text in stops:
        if not isinstance(text, str) or not text:
            raise RequestError("stop", f"{shown(text)} is not a text of at least one character", "leave it out")
    if len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_STOP_CHARACTERS:
        why = f"{len(stops)} texts of together {sum(map(len, stops))} characters"
        raise RequestError("stop", why, f"give at most {MOST_STOPS} of together {MOST_STOP_CHARACTERS} characters")
    return stops


def _several(name: str, values: Any, remedy: str) -> list[Any]:
    """Return what an iterable holds, nothing for None."""
    try:
        return [] if values is None else list(values)
    except TypeError:
        raise RequestError(name, f"{shown(values)} is not a sequence", remedy) from None


def shown(value: object) -> str:
    """Return what a user gave for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _adapters(adapter: Any) -> Adapters | None:
    if adapter is None or (isinstance(adapter, str) and adapter):
        return adapter
    remedy = 'give a name, or names with weights: (("a", 1.0), ("b", 0.5))'
    if not isinstance(adapter, (tuple, list)) or not adapter:
        raise RequestError("adapter", f"{shown(adapter)} is no adapter", remedy)
    pairs: list[tuple[str, float]] = []
    for pair in adapter:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise RequestError("adapter", f"{shown(pair)} is not a name and its weight", remedy)
        weight = _number(f"weight of adapter {pair[0]}", pair[1], -math.inf, math.inf, "1 is as it was trained")
        pairs.append((pair[0], weight))
    if len({name for name, _ in pairs}) < len(pairs):
        raise RequestError("adapter", "the same one is named twice", "add up its weights")
    return pairs[0][0] if len(pairs) == 1 and pairs[0][1] == 1.0 else tuple(pairs)


def _ids(prompt: Any) -> tuple[int, ...]:
    try:
        if isinstance(prompt, (bytes, bytearray, abc.Mapping, abc.Set)):
            raise TypeError
        return tuple(map(operator.index, prompt))
    except TypeError:
        raise RequestError("prompt", "it is neither a text nor a sequence of token ids", "give one of them") from None
