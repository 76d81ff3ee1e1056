"""Whether texts that contain an adapter's invocation also contain its tokens.

Tokenizers join characters across the ends of what a user appends, so an invocation that begins or ends with ordinary
text may be read as other tokens there, and the adapter then never acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infeng_core.log import get_logger
from infeng_core.requests.tokenizer import Tokenizer

NEIGHBOURS = ("a", "A", "1", ".", " ", "\n")
"""Characters beside an invocation that are tried."""

_log = get_logger(__name__)


def note_unsafe_ends(source: str, invocation: tuple[int, ...], tokenizer: Tokenizer) -> None:
    """Log a warning if the invocation of the adapter at ``source`` is read as other tokens beside some characters."""
    try:
        text = _text_of(invocation, tokenizer)
        beside = [(before, "") for before in NEIGHBOURS] + [("", after) for after in NEIGHBOURS]
        encoded = tokenizer.encode([f"{before}{text}{after}" for before, after in beside], parse_special=True)
        lost = [pair for pair, ids in zip(beside, encoded, strict=True) if not _contains(ids, invocation)]
    except Exception as error:  # a tokenizer of a plugin, which may have no texts
        _log.info("an invocation has no text here", adapter=source, error=f"{type(error).__name__}: {error}")
        return
    if lost:
        places = {"after": _shown(before for before, _ in lost), "before": _shown(after for _, after in lost)}
        why = "its text is read as other tokens beside these characters, and the adapter does not act there"
        event = "an adapter's invocation may not be found"
        _log.warning(event, adapter=source, text=text, reason=why, **places)


def _shown(characters: Iterable[str]) -> str:
    return " ".join(repr(one) for one in characters if one) or "none"


def _text_of(invocation: tuple[int, ...], tokenizer: Tokenizer) -> str:
    """Return the text of the tokens inside of a text, special tokens included."""
    pieces = tokenizer.detokenizer(invocation, skip_special_tokens=False)
    return "".join([*map(pieces.push, invocation), pieces.finish()])


def _contains(ids: Sequence[int], invocation: tuple[int, ...]) -> bool:
    size = len(invocation)
    return any(tuple(ids[begin : begin + size]) == invocation for begin in range(len(ids) - size + 1))
