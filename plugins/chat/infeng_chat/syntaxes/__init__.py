"""The syntaxes in which models write calls, one file each. A model's is the first whose markers its template has."""

from __future__ import annotations

from infeng_chat.answers.calls import Syntax
from infeng_chat.syntaxes import (
    deepseek,
    functions,
    gemma,
    glm,
    harmony,
    kimi,
    llama,
    mistral,
    pythonic,
    qwen_coder,
    tags,
)

SYNTAXES: tuple[Syntax, ...] = (
    harmony.SYNTAX,
    gemma.SYNTAX,
    kimi.SYNTAX,
    *deepseek.SYNTAXES,
    *mistral.SYNTAXES,
    glm.SYNTAX,
    *qwen_coder.SYNTAXES,
    functions.SYNTAX,
    *tags.SYNTAXES,
    *pythonic.SYNTAXES,
    llama.SYNTAX,
)


def detected(source: str) -> Syntax | None:
    """Return the syntax of a template's calls, None if it is unknown."""
    for syntax in SYNTAXES:
        if any(all(marker in source for marker in markers) for markers in syntax.markers):
            return syntax
    return None
