"""A tokenizer.json as the ``tokenizers`` library's own object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.api import ModelError
from infeng_tokenizers.bounds import MAX_GROWTH, growth_bounds
from infeng_tokenizers.document import AGAIN, read, steps_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

CHECK = "check the model's tokenizer.json"

FIRST = ("a", "A", "1", " ", "\n", ".", "-", "\u00e9", "\u4e00")
"""Texts on which each pattern is tried."""


def open_tokenizer(data: bytes, path: Path) -> tuple[Fast, Mapping[str, Any], Mapping[str, float]]:
    """Return the tokenizer in ``data``, its document, and the bound on each part's growth of a text.

    Raises ModelError naming ``path`` for an invalid tokenizer, and for one that makes texts too long.
    """
    from tokenizers import Tokenizer as Fast

    document = read(data, path)
    bounds = growth_bounds(document)
    for part, bound in bounds.items():
        if bound > MAX_GROWTH:
            raise ModelError(f"{path}", f"its {part} can make a text {bound:.3g} times as long", CHECK)
    try:
        _require_matches(document.get("normalizer"))
        fast = Fast.from_buffer(data)
        fast.no_truncation()
        fast.no_padding()
        fast.encode("")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # bare Exceptions for errors that the library detects, panics for others
        raise ModelError(f"{path}", f"not a tokenizer: {error}", AGAIN) from None
    return fast, document, bounds


def _require_matches(normalizer: Mapping[str, Any] | None) -> None:
    """Raise ValueError if a step replaces an empty match before a text: the library would count the insertion as
    text.

    No general test for empty matches exists; most patterns that match nothing do so before one of ``FIRST``.
    """
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    for step in steps_of(normalizer, "normalizer"):
        pattern = step.get("pattern")
        regex = pattern.get("Regex") if step.get("type") == "Replace" and isinstance(pattern, dict) else None
        if isinstance(regex, str) and step.get("content"):
            marked = Replace(Regex(regex), "\0")
            if any(marked.normalize_str(text).startswith(f"\0{text}") for text in FIRST):
                raise ValueError(f"its normalizer replaces {regex[:80]!r}, which matches nothing before a text")
