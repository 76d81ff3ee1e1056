"""Hooks of this plugin: its logit processors, and the option that names any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from infeng_core.api import LogitProcessorFactory, RunOptions, hookimpl

if TYPE_CHECKING:
    from infeng_core.api import LogitProcessor, Vocabulary

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


@hookimpl
def infeng_run_options() -> dict[str, RunOptions]:
    """Return the option that names a logit processor of any plugin."""
    from infeng_processors.options import ProcessorOptions

    return {"processors": ProcessorOptions()}
