"""Waits for a text, such as ``</think>``, in the bytes of tokens, with a Knuth-Morris-Pratt automaton."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.api import Adjustment
from infeng_grammar.tokens import Tokens

DONE = -1
"""The state in which the text is complete."""

_BLANK = b" \t\r\n"


class Waiting:
    """The automaton for one text. A state is the number of its bytes that the output ends with.

    Until the text is complete, the output is unconstrained with two exceptions: it may not end, and no token may hold
    the end of the text and more than whitespace behind it, since what follows the text is the grammar's.
    """

    def __init__(self, text: str, tokens: Tokens) -> None:
        """Build the automaton for ``text``."""
        self._text = text.encode()
        self._spelt = tokens.spelt()
        self._back = _borders(self._text)
        forbidden = self._forbidden()
        rows = {ids: Adjustment(tokens.mask_without(list(ids))) for ids in dict.fromkeys(forbidden)}
        self.rows: Sequence[Adjustment] = [rows[ids] for ids in forbidden]
        """The adjustment of the next token's logits, by state."""

    def next(self, state: int, token: int) -> int:
        """Return the state after ``token``."""
        return self._run(state, self._spelt[token])[0]

    def _run(self, state: int, spelt: bytes) -> tuple[int, bytes]:
        """Return the state after some bytes, and the bytes that follow the text once it is complete."""
        for place, byte in enumerate(spelt):
            while state and self._text[state] != byte:
                state = self._back[state]
            state += self._text[state] == byte
            if state == len(self._text):
                return DONE, spelt[place + 1 :]
        return state, b""

    def _forbidden(self) -> list[tuple[int, ...]]:
        """Return the forbidden tokens of each state."""
        last = self._text[-1:]
        longer = [(id_, spelt) for id_, spelt in enumerate(self._spelt) if spelt[:-1].find(last) >= 0]
        return [
            tuple(id_ for id_, spelt in longer if self._run(state, spelt)[1].strip(_BLANK))
            for state in range(len(self._text))
        ]


def _borders(text: bytes) -> list[int]:
    """Return the KMP failure function: by length of a prefix, the length of its longest border."""
    found = [0, 0]
    for byte in text[1:]:
        border = found[-1]
        while border and text[border] != byte:
            border = found[border]
        found.append(border + (text[border] == byte))
    return found
