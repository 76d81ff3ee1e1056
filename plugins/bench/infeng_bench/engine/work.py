"""A work, the unit of measurement of one engine, written as a short text: ``decode:rows=1,context=1024``."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from infeng_core.api import UsageError, unknown_key_remedy

KINDS = {"decode": ("rows", "context", "steps"), "prefill": ("rows", "context")}
"""Each kind of work and the numbers that describe it."""

STEPS = 32
MOST = 1 << 24  # largest number accepted; a larger one is a typing error
FIRST_ID = 3  # ids below are special tokens in the tokenizers of Llamas


@dataclass(frozen=True)
class Work:
    """One measurement of one engine.

    ``decode``: ``rows`` sequences with ``context`` tokens each generate ``steps`` more; the first token of a sequence
    belongs to prefill and is not timed. ``prefill``: ``rows`` prompts of ``context`` tokens until each has its first
    token.
    """

    kind: str
    rows: int = 1
    context: int = 1024
    steps: int = STEPS

    @staticmethod
    def parse(text: str) -> Work:
        """Read ``KIND[:NAME=NUMBER,...]``; raises UsageError that suggests the nearest name."""
        kind, _, rest = text.partition(":")
        if kind not in KINDS:
            raise UsageError(f"work {text!r}", f"there is no kind {kind!r}", unknown_key_remedy(kind, KINDS))
        given: dict[str, int] = {}
        for part in rest.split(",") if rest else ():
            name, equals, value = part.partition("=")
            if name not in KINDS[kind]:
                why = f"{kind} has no {name!r}"
                raise UsageError(f"work {text!r}", why, unknown_key_remedy(name, KINDS[kind]))
            if not equals or not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MOST:
                raise UsageError(f"work {text!r}", f"{name} is {value!r}", f"give a whole number from 1 to {MOST}")
            if name in given:
                raise UsageError(f"work {text!r}", f"{name} is given twice", "give it once")
            given[name] = int(value)
        return Work(kind, **given)

    def __str__(self) -> str:
        """Return the text that ``parse`` reads back; a default number of steps is left out."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        names = [name for name in KINDS[self.kind] if name != "steps" or self.steps != STEPS]
        return f"{self.kind}:" + ",".join(f"{name}={shown[name]}" for name in names)

    @property
    def tokens(self) -> int:
        """Timed tokens: decoded tokens, or tokens of the prompts."""
        return self.rows * (self.steps if self.kind == "decode" else self.context)

    @property
    def positions(self) -> int:
        """Cache positions of one sequence."""
        return self.context + (self.steps if self.kind == "decode" else 0) + 1

    def prompts(self, seed: int, vocab: int) -> list[list[int]]:
        """Return ``rows`` prompts of ``context`` random ids, determined by seed and row."""
        first = min(FIRST_ID, vocab - 1)
        return [
            np.random.default_rng([seed, row]).integers(first, vocab, self.context).tolist() for row in range(self.rows)
        ]
