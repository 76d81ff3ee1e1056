"""Requests and completions: the question of a caller and its answer. Everything here is immutable."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from infeng_core.errors import RequestError
from infeng_core.record import Record, entry
from infeng_core.requests import checks
from infeng_core.requests.parameters import SAMPLING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Adapters = str | tuple[tuple[str, float], ...]
"""Adapters of a request: one by its name, or several that combine, each (name, weight)."""

FinishReason = Literal["stop", "length", "cancelled", "timeout"]
"""``stop``: an end token or a stop string; ``length``: max_tokens or the end of the context; the others by name."""

MOST_LOGPROBS = 256
"""Most likely tokens reported beside each token."""


class SamplingParams(Record, kw_only=True):
    """The choice of tokens and the end of a completion.

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
    typical_p: float = 1.0
    """Keep tokens whose surprise is nearest to the expected one until they exceed this sum, in (0, 1]; 1 keeps all."""
    top_n_sigma: float = 0.0
    """Keep tokens whose logit is at most so many standard deviations of all logits below the largest; 0 keeps all."""
    xtc_probability: float = 0.0
    """How often XTC acts, in [0, 1]: among all tokens that reach its threshold it keeps only the least likely."""
    xtc_threshold: float = 0.1
    """The probability from which XTC considers a token, in (0, 1]; above 0.5 there are never two."""
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
    """The same for each token of the prompt but its first. It takes more steps, because logits of every row are
    needed."""
    logits: bool = False
    """Report the logits from which each new token was drawn."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Draw only these tokens; None allows all."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of words: a word's last token is not drawn after its other tokens, also if these are in the prompt."""
    min_tokens: int = 0
    """No end token before this many new tokens; stop strings still end the text."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """((id, addend of its logit), ...), or a mapping."""
    repetition_penalty: float = 1.0
    """Logits above 0 of tokens of the prompt and the answer are divided by it, others multiplied; 1 changes none."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the answer, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """The same, once for each occurrence."""
    dry_multiplier: float = 0.0
    """DRY: subtracted from the logits of tokens that would repeat a continuation of ``dry_allowed_length`` equal
    tokens ..."""
    dry_base: float = 1.75
    """... times this, 1 or more, for each further token of the repetition, up to 50 tokens. 0 subtracts nothing."""
    dry_allowed_length: int = 2
    """Tokens of a repetition before the first penalty, from 1 to 50."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Repetitions do not cross the last token of such a text (as tokenized after an ``a``)."""
    dry_penalty_last_n: int = -1
    """How many of the last tokens are searched, the prompt's included; -1: all, 0: none."""
    processors: tuple[tuple[str, Any], ...] = ()
    """((name, argument), ...) of plugins' logit processors, in the order in which they act."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text. If not, they are spelled, except one that ends the answer."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, row in SAMPLING.items():
            value = getattr(self, name, None)
            if row.kind == "number":
                put(name, checks.number(name, value, row.low, row.high, row.remedy))
            elif row.kind == "integer" and (name != "seed" or value is not None):
                most = self.max_tokens if name == "min_tokens" else row.high
                put(name, checks.integer(name, value, int(row.low), int(most), row.remedy))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                put(name, checks.integer(name, getattr(self, name), 0, MOST_LOGPROBS, "0 reports the token alone"))
        put("stop", checks.texts("stop", self.stop))
        put("stop_token_ids", checks.tokens("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            put("allowed_token_ids", checks.tokens("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids", "there are none", "give one at least, or None for all")
        words = checks.several("bad_words_ids", self.bad_words_ids, "give token ids of each word")
        put("bad_words_ids", tuple(checks.tokens("bad_words_ids", word) for word in words))
        checks.require_few(self.bad_words_ids)
        put("logit_bias", checks.biases(self.logit_bias))
        put("dry_sequence_breakers", checks.texts("dry_sequence_breakers", self.dry_sequence_breakers))
        put("processors", checks.processors(self.processors))
        for name in ("logits", "ignore_eos", "skip_special_tokens"):
            checks.flag(name, getattr(self, name), "give True or False, or leave it out")

    def named_ids(self) -> dict[str, Iterable[int]]:
        """Return the tokens named by each parameter."""
        return {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words_ids": chain.from_iterable(self.bad_words_ids),
            "logit_bias": (id_ for id_, _ in self.logit_bias),
        }


class Request(Record):
    """One prompt with everything that belongs to it.

    The engine's tokenizer turns a text into ids (with a beginning-of-text token if the model expects one); ids are
    used unchanged.
    """

    prompt: str | tuple[int, ...]
    params: SamplingParams = entry(default_factory=SamplingParams)
    priority: int = 0
    """Larger is more urgent, of 32 bits; the built-in first-come scheduler ignores it."""
    tenant: str = ""
    """The tenant, for schedulers that share fairly: at most 1024 characters."""
    adapter: Adapters | None = None
    """Name of a loaded LoRA adapter, or ((name, weight), ...) of several that combine; None is the base model."""
    timeout: float | None = None
    """Seconds from its submission after which it ends with its present text; None: no limit."""
    cache_salt: str = ""
    """Requests share cached blocks of equal beginnings only if this is equal: set it to keep tenants apart. At most
    1024 characters."""
    parse_special: bool | None = None
    """Whether special tokens in a text become their ids, or stay text; None: as ``tokenizer.parse_special`` says."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("adapter", checks.adapters(self.adapter))
        most = checks.MOST_PRIORITY
        put("priority", checks.integer("priority", self.priority, -most, most, "0 is usual, more is more urgent"))
        if self.timeout is not None:
            remedy = "give seconds, or leave it out"
            put("timeout", checks.number("timeout", self.timeout, 0.0, math.inf, remedy))
        for name in ("tenant", "cache_salt"):
            checks.label(name, getattr(self, name))
        if not isinstance(self.params, SamplingParams):
            raise RequestError("params", f"{type(self.params).__name__} is not SamplingParams", "give SamplingParams")
        if self.parse_special is not None and not isinstance(self.parse_special, bool):
            why = f"{checks.shown(self.parse_special)} is neither true, false nor None"
            raise RequestError("parse_special", why, "leave it out for the manifest's setting")
        if not isinstance(self.prompt, str):
            put("prompt", checks.ids(self.prompt))

    @staticmethod
    def of(prompt: Request | str | Iterable[int], params: SamplingParams | None = None, adapter: Any = None) -> Request:
        """Return ``prompt`` as a request; one that already is a request keeps its own parameters and adapter."""
        if isinstance(prompt, Request):
            return prompt
        ids = prompt if isinstance(prompt, str) else checks.ids(prompt)
        return Request(ids, SamplingParams() if params is None else params, adapter=adapter)


class Usage(Record):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    """Tokens that were guessed, by speculation or a processor, and verified by a step."""
    accepted_tokens: int = 0
    """The guessed tokens that became part of the completion."""
    cached_tokens: int = 0
    """Tokens of the prompt that were found in the cache."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def acceptance(self) -> float | None:
        """Share of the guesses that became tokens; None without guesses."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


class Timings(Record):
    """Wall-clock seconds of a request."""

    queued: float
    """From its submission to its first step."""
    first_token: float
    """From its submission to its first token (TTFT)."""
    total: float
    """From its submission to its end."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural log-probability by the model's logits, before temperature and filters.

    Unlike the tokens, its bytes may differ between machines.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, log-probability) of the most likely ones, the likeliest first."""
    rank: int = 1
    """Rank of the token, 1 for the likeliest; of equally likely tokens, smaller ids come first."""


class Completion(Record):
    """The whole answer to a request."""

    text: str
    """The text after the prompt: ``prompt + text`` reads as one text. It excludes stop strings and special tokens."""
    token_ids: tuple[int, ...]
    """All new tokens, an end token included."""
    finish_reason: FinishReason
    usage: Usage
    seed: int
    """The seed that was used, drawn or given."""
    timings: Timings
    logprobs: tuple[Logprob, ...] = ()
    """Log-probability of each new token, if requested."""
    prompt_logprobs: tuple[Logprob | None, ...] = ()
    """Log-probability of each token of the prompt, if requested; None for the first, which follows nothing."""
    logits: NDArray[np.float32] | None = entry(default=None, compare=False, repr=False)
    """(new tokens, vocab), if requested: the logits from which each was drawn."""
