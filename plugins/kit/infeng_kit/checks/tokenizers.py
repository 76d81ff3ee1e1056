"""A tokenizer: awkward texts come back from their ids, whole and piece by piece, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from infeng_core.api import TOKENIZERS, Engine
from infeng_kit.checks.engine import GREEDY
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

TEXTS = (
    "",
    " ",
    "the quick brown fox",
    "  two  spaces\tand\r\nlines\n\n",
    "h\u00e9llo, w\u00f6rld",
    "e\u0301 and \u00e9",  # the same letter, composed and not
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",  # joined, and a flag
    "\u05e9\u05dc\u05d5\u05dd \u202e\u0645\u0631\u062d\u0628\u0627",  # right to left
    "a\u0000b\ufeff\ufffd",
    "<s> </s> <|endoftext|>",
    "x" * 3000,
)


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report which texts do not come back, and whether an engine answers with the tokenizer."""
    part = f"tokenizer {name}"
    plugins = plan.plugins(tokenizer__use=name)
    made = plugins.get(TOKENIZERS, name)(plan.tiny(), plugins.config)
    teller.begin(f"texts of tokenizer {name}")
    faults = list(_faults(made))
    for fault in faults[:3]:
        teller.line(failed(part, fault, "a text is what its ids decode to; docs/adding-a-plugin.md has the interface"))
    if not faults:
        teller.line(ok(part, f"{len(TEXTS)} awkward texts come back from their ids, whole and piece by piece"))
    teller.begin(f"an engine with tokenizer {name}")
    with Engine(plan.tiny(), overrides=plan.settings(tokenizer__use=name)) as engine:
        answer = engine.generate("the quick", GREEDY)[0]
    if len(answer.token_ids) == GREEDY.max_tokens:
        teller.line(ok(part, "an engine answers with it"))
    else:
        teller.line(failed(part, f"an engine gave {len(answer.token_ids)} tokens", "look at encode and eos_id"))


def _faults(made: Any) -> Iterator[str]:
    batch = made.encode(list(TEXTS))
    for text, ids in zip(TEXTS, batch, strict=True):
        shown = repr(text[:30])
        if made.encode([text])[0] != ids:
            yield f"{shown} has other ids alone than in a batch"
        if not all(0 <= token < made.vocab_size for token in ids):
            yield f"{shown} has ids outside of 0 to {made.vocab_size - 1}"
        if made.decode(ids) not in (text, text.replace("<s>", "").replace("</s>", "")):
            yield f"{shown} comes back as {made.decode(ids)[:30]!r}"
        pieces = made.detokenizer([])
        streamed = "".join(pieces.push(token) for token in ids) + pieces.finish()
        if streamed != made.decode(ids):
            yield f"{shown} comes back piece by piece as {streamed[:30]!r}, whole as {made.decode(ids)[:30]!r}"
