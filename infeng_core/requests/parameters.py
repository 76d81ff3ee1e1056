"""The sampling parameters that users give, a row each: what is checked, and what options, servers and docs say.

A parameter that a row is added for is an option of every command that generates; SamplingParams needs its field, and a
server its field of the request's body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["number", "integer", "flag", "texts", "tokens", "biases"]
"""``texts`` and ``tokens`` are several; ``biases`` are numbers by token ids."""

BELOW_1 = 1.0 - 2.0**-24
"""The largest float32 below 1."""
TINY = 2.0**-126
"""The smallest float32 of full precision. Numbers are used as float32, and checked as that."""
HUGE = 2.0**128 - 2.0**104
"""The largest float32."""

MAX_SEED = 2**64 - 1

MOST_DRY_LENGTH = 50
"""Tokens of a repetition that DRY looks at (dry.py)."""

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """One sampling parameter."""

    kind: Kind
    help: str
    """Its effect, in few words."""
    low: float = -HUGE
    high: float = HUGE
    """Both may be given."""
    remedy: str = ""
    """The remedy for a value out of range."""

    def bounds(self) -> dict[str, float]:
        """Return ``minimum`` and ``maximum`` of JSON Schema, where there are such."""
        found = {"minimum": self.low} if self.low > -HUGE else {}
        return found | ({"maximum": self.high} if self.high < HUGE else {})


def _number(help: str, low: float, high: float, remedy: str) -> Parameter:
    return Parameter("number", help, low, high, remedy)


def _integer(help: str, low: int, high: int, remedy: str) -> Parameter:
    return Parameter("integer", help, low, high, remedy)


SAMPLING: Mapping[str, Parameter] = MappingProxyType(
    {
        "temperature": _number(
            "0 is greedy; larger is more even", 0, HUGE, "0 is greedy, 0.7 to 1.0 is usual"
        ),
        "top_k": _integer("the k most likely tokens; 0 keeps all", 0, _MOST, "0 keeps all tokens"),
        "top_p": _number(
            "the fewest most likely tokens whose probabilities reach this sum",
            TINY, 1, "it must be above 0; 1 keeps all tokens",
        ),
        "min_p": _number(
            "no tokens less likely than this share of the most likely one",
            0, BELOW_1, "it must be below 1; 0 drops no token",
        ),
        "typical_p": _number(
            "locally typical sampling; 1 keeps all", TINY, 1, "it must be above 0; 1 keeps all tokens"
        ),
        "top_n_sigma": _number(
            "tokens within this many standard deviations of the best logit", 0, HUGE, "0 keeps all tokens"
        ),
        "xtc_probability": _number("how often XTC drops the most likely tokens", 0, 1, "0 never acts"),
        "xtc_threshold": _number("the probability from which XTC may drop a token", TINY, 1, "0.1 is usual"),
        "dry_multiplier": _number(
            "strength of DRY against repeated sequences; 0 is off", 0, HUGE, "0 is off, 0.8 is usual"
        ),
        "dry_base": _number("growth of DRY's penalty with a sequence's length", 1, HUGE, "1.75 is usual"),
        "dry_allowed_length": _integer("longest sequence that DRY lets repeat", 1, MOST_DRY_LENGTH, "2 is usual"),
        "dry_sequence_breakers": Parameter(
            "texts", "texts that end a sequence of DRY"
        ),
        "dry_penalty_last_n": _integer(
            "how many of the last tokens DRY searches; -1 is all", -1, _MOST, "-1 searches all tokens"
        ),
        "seed": Parameter(
            "integer", "the same request with the same seed gives the same tokens",
            0, MAX_SEED, "leave it out for a random one",
        ),
        "max_tokens": _integer("most new tokens", 1, _MOST, "ask for at least one token"),
        "min_tokens": _integer(
            "no end token before there are so many", 0, _MOST, "it cannot be more than max_tokens"
        ),
        "stop": Parameter("texts", "the text ends before the first of these"),
        "stop_token_ids": Parameter("tokens", "tokens that end the text"),
        "ignore_eos": Parameter("flag", "go on past the model's end tokens"),
        "presence_penalty": _number(
            "against tokens that the answer has; -2 to 2", -2, 2, "it must be from -2 to 2; 0 changes nothing"
        ),
        "frequency_penalty": _number(
            "against tokens that the answer has, for each time; -2 to 2",
            -2, 2, "it must be from -2 to 2; 0 changes nothing",
        ),
        "repetition_penalty": _number(
            "against tokens of prompt and answer; 1 changes none",
            TINY, HUGE, "1 changes nothing, 1.1 to 1.3 is usual",
        ),
        "logit_bias": Parameter("biases", "by token id, added to its logit"),
        "allowed_token_ids": Parameter("tokens", "only these tokens are drawn"),
        "bad_words": Parameter(
            "texts", "texts that the answer does not have, at a word's start or within"
        ),
    }
)  # fmt: skip
"""By SamplingParams' names; but ``bad_words``, texts, which bad_words.py turns into its ``bad_words_ids``."""
