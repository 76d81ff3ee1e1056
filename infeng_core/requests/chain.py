"""The logit processors of each request: made at its start, fed with its tokens, called for its sampled rows."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice, starmap
from time import thread_time
from typing import NamedTuple, TypeVar

from infeng_core.batch import RunningRequest
from infeng_core.errors import InfengError, PluginError
from infeng_core.log import get_logger
from infeng_core.requests.builtin_processors import requested_processors
from infeng_core.requests.processors import (
    BITS,
    Adjustment,
    LogitProcessor,
    LogitProcessorFactory,
    LogitProcessors,
    Vocabulary,
    copied,
    wrong,
)
from infeng_core.requests.request import SamplingParams

_T = TypeVar("_T")

_log = get_logger(__name__)

MOST_FORCED = 16
"""Most tokens of one request that its processors may force in a step."""

MOST_BETWEEN = 0.002
"""Average seconds of an answer up to which a request is also called between two steps."""

_REMEDY = "leave it out, or ask the author of its plugin for a repair"


class Chains:
    """The processors that an engine's requests name, each kind made once, when the first request names it."""

    def __init__(self, factory: Callable[[str], LogitProcessorFactory], vocabulary: Vocabulary) -> None:
        """factory: finds a kind by its name; raises PluginError."""
        self._factory = factory
        self._vocabulary = vocabulary
        self._kinds: dict[str, LogitProcessors] = {}
        self._lock = threading.Lock()

    def start(self, params: SamplingParams, prompt: list[int], ends: Collection[int]) -> Chain | None:
        """Return the processors of a request whose text ends with one of ``ends``; None without processors.

        Raises PluginError for an unknown or failing kind, RequestError for an invalid argument.
        """
        asked = requested_processors(params, ends)
        if not asked:
            return None
        made = [(name, partial(self._kind(name).make, argument)) for name, argument in asked]
        return Chain(made, prompt, frozenset(ends), self._vocabulary.size)

    def _kind(self, name: str) -> LogitProcessors:
        with self._lock:
            if name not in self._kinds:
                self._kinds[name] = self._factory(name)(self._vocabulary)
            return self._kinds[name]


class _State(NamedTuple):
    """Processors and their position."""

    restarts: int
    """Tokens of the request before them."""
    taken: int
    """Tokens after the prompt that they have seen."""
    processors: list[tuple[str, LogitProcessor]]


class _Answer(NamedTuple):
    """The answers for some rows."""

    restarts: int
    length: int
    """Tokens of the request, the prompt included."""
    guesses: tuple[int, ...]
    rows: list[list[Adjustment]] | InfengError


class Chain:
    """The processors of one request, in the order in which they act. They are advanced to its tokens when needed.

    A caller takes the processors, calls them and puts them back. If they are missing, because an exception such as
    Ctrl-C came in between or a thread still uses them for an abandoned step, they are made again from the prompt.
    """

    def __init__(
        self,
        makers: Sequence[tuple[str, Callable[[Sequence[int]], LogitProcessor]]],
        prompt: Sequence[int],
        ends: frozenset[int],
        vocab: int,
    ) -> None:
        """makers: the name and factory of each. Raises as ``Chains.start``."""
        self._makers = makers
        self._ends = ends
        self._vocab = vocab
        self._restarts = 0
        self._states = [_State(0, 0, self._made(prompt))]  # one, or none during a call
        self._is_forcing = any(starmap(_can_force, self._states[0].processors))
        self._answer: _Answer | None = None  # the latest
        self._seconds, self._times = 0.0, 0
        self.error: InfengError | None = None
        """The error that keeps the request's next token from being drawn, or None."""

    @property
    def names(self) -> str:
        """The names of the processors, for messages."""
        return ", ".join(name for name, _ in self._makers)

    def restart(self) -> None:
        """Forget everything: the request is computed again."""
        self._restarts += 1
        self.error = None

    @property
    def cost(self) -> float:
        """Average seconds of processor time per answer."""
        return self._seconds / self._times if self._times else 0.0

    def rows(self, sequence: RunningRequest, guesses: Sequence[int]) -> list[list[Adjustment]]:
        """Return the adjustments of the token after ``sequence``, of the token after the first guess, and so on.

        Rows after a guess that is not allowed, or is an end, are left out, and so are rows after a guess at which a
        processor fails: it is called again if the guess comes true. Raises PluginError if it fails before any guess.
        A second call with the same tokens returns the same without further work.
        """
        guesses = tuple(guesses)  # immutable, like every argument of processors
        known = self._answer
        is_new = known is None or (known.restarts, known.length) != (self._restarts, sequence.length)
        if known is None or is_new or _common(known.guesses, guesses) < min(len(known.guesses), len(guesses)):
            known = self._answer = self._asked_for(sequence, guesses)
        if isinstance(known.rows, InfengError):
            raise known.rows
        return known.rows[: len(guesses) + 1]

    def lose(self) -> None:
        """Report from now on that a processor did not return from a call."""
        self._makers, self._is_forcing = [(self.names, _lost)], False
        self._restarts += 1

    def _asked_for(self, sequence: RunningRequest, guesses: tuple[int, ...]) -> _Answer:
        restarts, length, begin = self._restarts, sequence.length, thread_time()
        found: list[list[Adjustment]] | InfengError
        try:
            found = self._rows(sequence, guesses)
        except InfengError as error:
            found = error
        self._seconds += thread_time() - begin
        self._times += 1
        return _Answer(restarts, length, guesses, found)

    def _rows(self, sequence: RunningRequest, guesses: tuple[int, ...]) -> list[list[Adjustment]]:
        state = self._behind(sequence)
        processors = state.processors
        found = [self._row(processors, ())]
        try:
            while len(found) <= len(guesses) and self._goes_on(found[-1], guesses[len(found) - 1]):
                found.append(self._row(processors, guesses[: len(found)]))
        except InfengError:
            return found
        self._states[:] = [state]
        return found

    def forced(self, sequence: RunningRequest) -> list[int]:
        """Return the tokens that must follow those of ``sequence``, if a processor knows them.

        After a failure it is not called again; its answers for rows decide. Nor is it called while answers are slow:
        this runs between two steps, when all requests wait.
        """
        if not self._is_forcing or self.error is not None or self.cost > MOST_BETWEEN:
            return []
        try:
            state = self._behind(sequence)
            found = next(filter(None, starmap(self._forced, state.processors)), [])
        except InfengError as error:
            self._is_forcing = False
            _log.warning("a logit processor failed to say what has to follow", error=str(error))
            return []
        self._states[:] = [state]
        return found

    def _forced(self, name: str, processor: LogitProcessor) -> list[int]:
        forced = getattr(processor, "forced", None)
        if forced is None:
            return []

        def few() -> list[int]:
            return [operator.index(token) for token in islice(forced(), MOST_FORCED)]

        found = _guarded(name, "forced()", few)
        if found and not 0 <= min(found) <= max(found) < self._vocab:
            why = f"forced() returned invalid tokens: the vocabulary has {self._vocab}"
            raise PluginError(f"logit processor {name}", why, _REMEDY)
        return found

    def _row(self, processors: list[tuple[str, LogitProcessor]], guesses: Sequence[int]) -> list[Adjustment]:
        asked = [self._asked(name, processor, guesses) for name, processor in processors]
        return [adjustment for adjustment in asked if adjustment is not None]

    def _made(self, prompt: Sequence[int]) -> list[tuple[str, LogitProcessor]]:
        return [(name, _guarded(name, "make()", partial(make, tuple(prompt)))) for name, make in self._makers]

    def _behind(self, sequence: RunningRequest) -> _State:
        """Take the processors and advance them to all tokens of ``sequence``."""
        restarts, length = self._restarts, sequence.length
        try:
            state = self._states.pop()  # one operation: two threads never get the same ones
        except IndexError:
            state = _State(-1, 0, [])
        if state.restarts != restarts or sequence.prompt_length + state.taken > length:
            state = _State(restarts, 0, self._made(sequence.tokens[: sequence.prompt_length].tolist()))
        new = tuple(sequence.tokens[sequence.prompt_length + state.taken : length].tolist())
        for name, processor in state.processors if new else ():
            _guarded(name, "extend()", partial(processor.extend, new))
        return state._replace(taken=length - sequence.prompt_length)

    def _asked(self, name: str, processor: LogitProcessor, guesses: Sequence[int]) -> Adjustment | None:
        wanted = _guarded(name, "row()", partial(processor.row, guesses))
        if text := _guarded(name, "the result of row()", partial(wrong, wanted, self._vocab)):
            raise PluginError(f"logit processor {name}", f"the result of row() {text}", _REMEDY)
        return None if wanted is None else _guarded(name, "the result of row()", partial(copied, wanted))

    def _goes_on(self, row: list[Adjustment], token: int) -> bool:
        """Return whether ``token``, drawn from a row, is allowed and does not end the text."""
        masks = (adjustment.allowed for adjustment in row if adjustment.allowed is not None)
        return token not in self._ends and all(int(mask[token // BITS]) >> token % BITS & 1 for mask in masks)


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common beginning of two sequences."""
    return next((place for place, (one, other) in enumerate(zip(some, others, strict=False)) if one != other),
                min(len(some), len(others)))  # fmt: skip


def _lost(prompt: Sequence[int]) -> LogitProcessor:
    raise PluginError("logit processor", "a call of it does not return", _REMEDY)


def _can_force(name: str, processor: LogitProcessor) -> bool:
    return _guarded(name, "forced", lambda: hasattr(processor, "forced"))


def _guarded(name: str, what: str, call: Callable[[], _T]) -> _T:
    """Return the result of ``call``; turns every error into a PluginError, except Ctrl-C."""
    try:
        return call()
    except (InfengError, KeyboardInterrupt):
        raise
    except BaseException as error:  # panics of libraries in other languages are not Exceptions
        if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
            raise  # a signal handler may raise it too
        why = f"{what} raised {type(error).__name__}: {error}"
        raise PluginError(f"logit processor {name}", why, _REMEDY) from error
