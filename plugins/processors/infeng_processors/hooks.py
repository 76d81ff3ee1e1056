"""Hook of this plugin: its logit processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from infeng_core.api import LogitProcessor, LogitProcessorFactory, Vocabulary, hookimpl

Kind = Callable[[Vocabulary, Any, Sequence[int]], LogitProcessor]


class Processors:
    """Adapts a kind of processor to the hook."""

    def __init__(self, kind: Kind, vocabulary: Vocabulary) -> None:
        """Make processors of ``kind``."""
        self._kind = kind
        self._vocabulary = vocabulary

    def make(self, argument: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of one request."""
        return self._kind(self._vocabulary, argument, prompt)


@hookimpl
def infeng_logit_processors() -> dict[str, LogitProcessorFactory]:
    """Return the processors that the fields ``bad_words_ids`` and ``dry_multiplier`` of a request select."""
    from infeng_processors.bad_words import BadWords
    from infeng_processors.dry import Dry

    return {"bad_words": partial(Processors, BadWords), "dry": partial(Processors, Dry)}
