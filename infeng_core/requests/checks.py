"""Checks of callers' arguments, which are also normalized; a RequestError names the fault and the remedy."""

from __future__ import annotations

import math
import operator
from collections import abc
from ctypes import c_float
from itertools import islice
from numbers import Real
from typing import Any

from infeng_core.errors import RequestError, printable
from infeng_core.requests.parameters import TINY

MOST_STOPS = 64
"""Stop strings of a request, and sequence breakers ..."""

MOST_STOP_CHARACTERS = 4096
"""... and the characters in them together: every new piece of text is searched for each stop string."""

MOST_BAD_WORDS = 1024
"""Words that a request may forbid ..."""

MOST_BAD_TOKENS = 16384
"""... and their tokens together: every row looks at all of them."""

MOST_BAD_CHARACTERS = 4 * MOST_BAD_TOKENS
"""Characters of such words before they are tokenized."""

MOST_PROCESSORS = 16
"""Logit processors of a request: each costs time in every step."""

MOST_VALUES = 1 << 20
"""Items of any other list: more than a vocabulary has tokens."""

MOST_ADAPTERS = 64
"""Adapters that one request combines, whatever their ranks."""

MOST_CHARACTERS = 1024
"""Characters of a tenant or a salt, which engines keep for a while after the request."""

MOST_PRIORITY = 2**31 - 1
"""Largest magnitude of a request's priority: schedulers compute with it in floating point."""


def number(name: str, value: Any, low: float, high: float, remedy: str) -> float:
    """Return ``value`` as a float if it is from ``low`` to ``high`` and finite, also as a float32."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer too large for a float
        number = math.inf
    except Exception:  # from a type of the caller's own
        number = math.nan
    used = c_float(number).value
    if not (math.isfinite(used) and low <= used <= high) or 0.0 < abs(number) < TINY:
        raise RequestError(name, f"{shown(value)} is out of range", remedy)
    return number


def integer(name: str, value: Any, low: int, high: int, remedy: str) -> int:
    """Return ``value`` as an int if it is an integer from ``low`` to ``high``."""
    try:
        number = operator.index(value)
    except Exception:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise RequestError(name, f"{shown(value)} is not an integer from {low} to {high}", remedy)
    return number


def flag(name: str, value: Any, remedy: str) -> bool:
    """Return ``value`` if it is true or false."""
    if not isinstance(value, bool):
        raise RequestError(name, f"{shown(value)} is neither true nor false", remedy)
    return value


def label(name: str, value: Any) -> str:
    """Return a label of bounded length; it may be empty."""
    if not isinstance(value, str):
        raise RequestError(name, f"{shown(value)} is not a text", "give one, or leave it out")
    if len(value) > MOST_CHARACTERS:
        raise RequestError(name, f"it has {len(value)} characters", f"give at most {MOST_CHARACTERS}")
    if not is_unicode(value):
        raise RequestError(name, "it is not valid Unicode", "give text, decoded from UTF-8")
    return value


def is_unicode(text: str) -> bool:
    """Return whether ``text`` has no half of a surrogate pair (Python's form of bytes that it cannot decode)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tokens(name: str, ids: Any) -> tuple[int, ...]:
    """Return token ids; a later check compares them with the vocabulary."""
    remedy = "give token ids"
    return tuple(integer(name, id_, 0, 2**31 - 1, remedy) for id_ in several(name, ids, remedy))


def require_few(words: tuple[tuple[int, ...], ...]) -> None:
    """Raise RequestError for too many words, and for a word without tokens."""
    if not all(words):
        raise RequestError("bad_words_ids", "a word has no token", "leave it out")
    count = sum(map(len, words))
    if len(words) > MOST_BAD_WORDS or count > MOST_BAD_TOKENS:
        remedy = f"give at most {MOST_BAD_WORDS} of together {MOST_BAD_TOKENS} tokens"
        raise RequestError("bad_words_ids", f"{len(words)} words of together {count} tokens", remedy)


def biases(given: Any) -> tuple[tuple[int, float], ...]:
    """Return ((id, bias), ...) of pairs or a mapping, each token once."""
    remedy = "give ((id, bias), ...) or a mapping of ids to biases"
    most = "give a number that float32 can hold"
    found = [
        (integer("logit_bias", id_, 0, 2**31 - 1, remedy), number("logit_bias", bias, -math.inf, math.inf, most))
        for id_, bias in pairs("logit_bias", given, remedy)
    ]
    if len({id_ for id_, _ in found}) < len(found):
        raise RequestError("logit_bias", "the same token is named twice", "add up its biases")
    return tuple(found)


def processors(given: Any) -> tuple[tuple[str, Any], ...]:
    """Return ((name, argument), ...) of pairs or a mapping."""
    remedy = 'give names with their arguments: (("choice", ("yes", "no")),)'
    named = pairs("processors", given, remedy)
    for name, _ in named:
        if not isinstance(name, str) or not name:
            raise RequestError("processors", f"{shown(name)} is no name", remedy)
    if len(named) > MOST_PROCESSORS:
        raise RequestError("processors", f"there are {len(named)}", f"name at most {MOST_PROCESSORS}")
    return tuple(named)


def pairs(name: str, given: Any, remedy: str) -> list[tuple[Any, Any]]:
    """Return the pairs of a sequence of them or of a mapping."""
    found = list(given.items()) if isinstance(given, abc.Mapping) else several(name, given, remedy)
    for pair in found:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RequestError(name, f"{shown(pair)} is no pair", remedy)
    return [(first, second) for first, second in found]


def texts(name: str, given: Any) -> tuple[str, ...]:
    """Return texts to search for, from one text or several."""
    found = (given,) if isinstance(given, str) else tuple(several(name, given, "give texts"))
    for text in found:
        if not isinstance(text, str) or not text:
            raise RequestError(name, f"{shown(text)} is not a text of at least one character", "leave it out")
    if len(found) > MOST_STOPS or sum(map(len, found)) > MOST_STOP_CHARACTERS:
        why = f"{len(found)} texts of together {sum(map(len, found))} characters"
        raise RequestError(name, why, f"give at most {MOST_STOPS} of together {MOST_STOP_CHARACTERS} characters")
    return found


def several(name: str, values: Any, remedy: str) -> list[Any]:
    """Return the items of an iterable, [] for None; raises RequestError also for an endless one."""
    try:
        found = [] if values is None else list(islice(values, MOST_VALUES))
    except TypeError:
        raise RequestError(name, f"{shown(values)} is not a sequence", remedy) from None
    if len(found) == MOST_VALUES:
        raise RequestError(name, f"it has {MOST_VALUES} values or more", "give fewer")
    return found


def shown(value: object) -> str:
    """Return a user's value for a message, cut if it is long."""
    if isinstance(value, (str, bytes, bytearray)):
        value = value[:80]  # cut first, to save the formatting of the rest
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or an object of the caller's own
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


def adapters(adapter: Any) -> str | tuple[tuple[str, float], ...] | None:
    """Return the adapters of a request in their simplest form."""
    if adapter is None or (isinstance(adapter, str) and adapter):
        return adapter
    remedy = 'give a name, or names with weights: (("a", 1.0), ("b", 0.5))'
    if not isinstance(adapter, (tuple, list)) or not adapter:
        raise RequestError("adapter", f"{shown(adapter)} is no adapter", remedy)
    if len(adapter) > MOST_ADAPTERS:
        raise RequestError("adapter", f"{len(adapter)} are named", f"combine at most {MOST_ADAPTERS}")
    weights: list[tuple[str, float]] = []
    for pair in adapter:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise RequestError("adapter", f"{shown(pair)} is not a name and its weight", remedy)
        weight = number(
            f"weight of adapter {printable(pair[0], 128)}", pair[1], -math.inf, math.inf, "1 is as it was trained"
        )
        weights.append((pair[0], weight))
    if len({name for name, _ in weights}) < len(weights):
        raise RequestError("adapter", "the same one is named twice", "add up its weights")
    return weights[0][0] if len(weights) == 1 and weights[0][1] == 1.0 else tuple(weights)


def ids(prompt: Any) -> tuple[int, ...]:
    """Return the token ids of a prompt that is no text."""
    try:
        if isinstance(prompt, (bytes, bytearray, abc.Mapping, abc.Set)):
            raise TypeError
        return tuple(map(operator.index, prompt))
    except (TypeError, ValueError, OverflowError):
        raise RequestError("prompt", "it is neither a text nor a sequence of token ids", "give one of them") from None
