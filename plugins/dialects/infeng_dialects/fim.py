"""Prompts for a text in the middle of another, with the tokens that a model was trained with for this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infeng_serve.api.dialects import Context, bare, check_text, check_tokens, encoded, not_supported

from infeng_core.api import Tokenizer

FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
"""Texts of the tokens before the beginning, before the end, and before the text that is filled in."""

FILE = ("<|file_sep|>", "<file_sep>")
"""Texts of the token before another file."""


class Tokens(NamedTuple):
    """The tokens of one model."""

    prefix: int
    suffix: int
    middle: int
    file: int | None


def tokens(tokenizer: Tokenizer) -> Tokens | None:
    """Return a tokenizer's tokens, None if it has none."""
    for form in FORMS:
        ids = [single(tokenizer, text) for text in form]
        if None not in ids:
            prefix, suffix, middle = (one for one in ids if one is not None)
            return Tokens(prefix, suffix, middle, next(filter(None, (single(tokenizer, text) for text in FILE)), None))
    return None


def single(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the special token that a text is, None if it is none."""
    [special], [plain] = (tokenizer.encode([text], parse_special=parses) for parses in (True, False))
    ids = bare(text, special, tokenizer)
    return ids[0] if len(ids) == 1 and special != plain else None


def prompt(
    before: str, after: str | None, context: Context, *, files: Sequence[tuple[str, str]] = (), begun: str = ""
) -> list[int]:
    """Return the prompt for a text between two others; raises ApiError if the model cannot.

    files: names and texts of other files. begun: the beginning of what is filled in.
    """
    known = tokens(context.tokenizer)
    if known is None:
        why = "the model's tokenizer has no tokens for filling in: serve one that has, such as Qwen2.5-Coder"
        raise not_supported("suffix", why)
    after = after or ""
    texts = [before, after, begun, *(f"{name}\n{text}" for name, text in files)]
    for text in texts:
        check_text(text, context, "prompt")
    check_tokens(texts, context, "prompt")
    head, tail, start, *others = (
        bare(text, ids, context.tokenizer) if text else []
        for text, ids in zip(texts, encoded(texts, context, "prompt", parse_special=False), strict=True)
    )
    [empty] = context.tokenizer.encode([""], parse_special=True)
    found = empty[:1] if context.tokenizer.bos_id is not None and empty[:1] == [context.tokenizer.bos_id] else []
    for ids in others:
        found += [*([known.file] if known.file is not None else []), *ids]
    return [*found, known.prefix, *head, known.suffix, *tail, known.middle, *start]
