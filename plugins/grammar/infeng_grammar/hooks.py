"""Hooks of this plugin: the logit processor ``grammar``, and the command-line options that use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infeng_core.api import RunOptions, hookimpl

if TYPE_CHECKING:
    from infeng_core.api import LogitProcessors, Vocabulary


@hookimpl
def infeng_logit_processors(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor's factory; it imports llguidance when a request first uses it."""

    def grammar(vocabulary: Vocabulary) -> LogitProcessors:
        from infeng_grammar.processor import Grammars

        return Grammars(vocabulary)

    return {"grammar": grammar}


@hookimpl
def infeng_run_options(settings: Mapping[str, Any]) -> dict[str, RunOptions]:
    """Return ``--json-schema``, ``--regex``, ``--choice`` and ``--grammar``."""
    from infeng_grammar.options import GrammarOptions

    return {"grammar": GrammarOptions()}
