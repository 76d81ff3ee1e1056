"""Grammars compiled for one engine's tokens, cached by content."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from infeng_core.api import RequestError
from infeng_grammar.argument import Wanted
from infeng_grammar.source import source

KEPT = 4
"""Used matchers of a grammar that are kept for later requests: their lexer caches make masks faster."""

LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=10_000,
    max_lexer_states=50_000,
    max_grammar_size=60_000,
    verbose_errors=False,
)
"""Limits of llguidance, in its own units: it fails with an error where a grammar or a step would exceed them."""


class Compiled:
    """A compiled grammar. Thread-safe."""

    def __init__(self, template: LLMatcher) -> None:
        """Make matchers as copies of ``template``, a matcher at the start of the grammar."""
        self._template = template
        self._used: deque[LLMatcher] = deque(maxlen=KEPT)

    def take(self) -> LLMatcher:
        """Return a matcher at the start of the grammar, for one request."""
        try:
            matcher = self._used.pop()
        except IndexError:
            return self._template.deep_copy()
        return matcher if matcher.reset() else self._template.deep_copy()

    def give_back(self, matcher: LLMatcher) -> None:
        """Keep the matcher of a finished request. Takes no lock, since garbage collection may call it anywhere."""
        self._used.append(matcher)


STACK = 256 << 20
"""Bytes of the compiling thread's stack: llguidance recurses along chains of rules, and an overflow aborts."""

_stacks = threading.Lock()


def compile_grammar(tokenizer: LLTokenizer, wanted: Wanted) -> Compiled:
    """Compile a grammar; raises RequestError for one that is invalid or too large."""
    found: list[Compiled | BaseException] = []

    def run() -> None:
        try:
            found.append(_compile(tokenizer, wanted))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _stacks:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _compile(tokenizer: LLTokenizer, wanted: Wanted) -> Compiled:
    what = f"grammar {wanted.kind}"
    try:
        matcher = LLMatcher(tokenizer, source(wanted), log_level=0, limits=LIMITS)
        if not matcher.is_error():
            probe = matcher.deep_copy()  # errors of the first mask are reported here
            probe.compute_bitmask()
            matcher = probe if probe.is_error() else matcher
        why = matcher.get_error() if matcher.is_error() else ""
    except (KeyboardInterrupt, SystemExit, RequestError):
        raise
    except BaseException as error:  # llguidance's panics are not of class Exception
        raise RequestError(what, f"it cannot be compiled: {tidy(str(error))}", _remedy(wanted, "")) from None
    if why:
        raise RequestError(what, tidy(why), _remedy(wanted, why))
    return Compiled(matcher)


REMEDIES = {
    "json_schema": "docs/structured-output.md lists what is supported",
    "regex": "use the syntax of Rust's regex crate, without lookaround and backreferences",
    "lark": "docs/structured-output.md says what differs from Lark",
}


def _remedy(wanted: Wanted, why: str) -> str:
    if "oneOf" in why:
        return "use anyOf, or tell the branches apart by a property with a const"
    return REMEDIES.get(wanted.kind, "correct it")


def tidy(message: str) -> str:
    """Return an error of llguidance without parser state, and without options that cannot be set here."""
    message = re.sub(
        r"Enable 'coerce_one_of' option to approximate .*", "but where its branches exclude each other", message
    )
    found = re.split(r"\n\s*<(?:state|non-verbose/|backtrace)>|\nstack backtrace", message)[0].strip()
    return re.sub(r"^panic: ", "more than the library can hold: ", found) or "it is not accepted"


_V = TypeVar("_V")


class Cache(Generic[_V]):
    """A thread-safe LRU cache that computes each value once; errors are cached too."""

    def __init__(self, most: int) -> None:
        """Keep the ``most`` values that were used last."""
        self._most = most
        self._entries: OrderedDict[object, _Entry[_V]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], _V]) -> _V:
        """Return ``make()``'s value for ``key``, or raise its RequestError; other threads wait for the same value."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return entry.get(make)


class _Entry(Generic[_V]):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[_V] = []
        self._refusal: RequestError | None = None

    def get(self, make: Callable[[], _V]) -> _V:
        with self._lock:
            if not self._found and self._refusal is None:
                try:
                    self._found.append(make())
                except RequestError as error:
                    self._refusal = RequestError(error.what, error.why, error.remedy)
        if self._refusal is not None:
            raise RequestError(self._refusal.what, self._refusal.why, self._refusal.remedy)
        return self._found[0]
