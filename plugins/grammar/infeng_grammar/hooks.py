"""What this plugin adds: the logit processor ``grammar``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import LogitProcessors, Vocabulary, hookimpl


@hookimpl
def infeng_logit_processors(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor; the library is imported when a request names it."""

    def grammar(vocabulary: Vocabulary) -> LogitProcessors:
        from infeng_grammar.processor import Grammars

        return Grammars(vocabulary)

    return {"grammar": grammar}
