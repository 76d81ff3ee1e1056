"""Sequences that decode together by a C interface such as llama.cpp's: several rows in one ``llama_batch``.

Files of peers load this one in the peer's interpreter, so it imports only the standard library and NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BATCH = 2048  # rows of one call


class Rows:
    """The sequences of a measurement and the batch of the next call."""

    def __init__(self, native: Any, vocab: int) -> None:
        """Allocate the batch. native: the module of the C functions."""
        self.native, self.vocab = native, vocab
        self.batch = native.llama_batch_init(BATCH, 0, 1)
        self.reset(0)

    def reset(self, rows: int) -> None:
        """Begin anew with ``rows`` empty sequences."""
        self.pending: list[list[int]] = [[] for _ in range(rows)]
        self.lengths, self.last = [0] * rows, [0] * rows
        self.batch.n_tokens = 0

    def admit(self, slot: int, prompt: list[int]) -> None:
        """Begin a sequence."""
        self.pending[slot], self.lengths[slot] = prompt, 0

    def advance(self, context: Any, slots: list[int]) -> list[tuple[int, int]]:
        """Compute what is pending of ``slots`` and return the likeliest next token of each."""
        for slot in slots:
            ends = self.lengths[slot] + len(self.pending[slot])
            for token in self.pending[slot]:
                self._add(token, self.lengths[slot], slot, self.lengths[slot] + 1 == ends)
                self.lengths[slot] += 1
                if self.batch.n_tokens == BATCH:
                    self._decode(context)
        self._decode(context)
        for slot in slots:
            self.pending[slot] = [self.last[slot]]
        return [(slot, self.last[slot]) for slot in slots]

    def _add(self, token: int, position: int, row: int, wanted: bool) -> None:
        at = self.batch.n_tokens
        self.batch.token[at] = token
        self.batch.pos[at] = position
        self.batch.n_seq_id[at] = 1
        self.batch.seq_id[at][0] = row
        self.batch.logits[at] = wanted
        self.batch.n_tokens = at + 1

    def _decode(self, context: Any) -> None:
        if not self.batch.n_tokens:
            return
        status = self.native.llama_decode(context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        for at in range(self.batch.n_tokens):
            if self.batch.logits[at]:
                logits = self.native.llama_get_logits_ith(context, at)
                row = self.batch.seq_id[at][0]
                self.last[row] = int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())
        self.batch.n_tokens = 0


def tensor_bytes(file: str) -> int:
    """Return the bytes of all tensors of a GGUF."""
    import gguf

    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors)


def weights_read(model: str) -> int:
    """Return the bytes of weights of a GGUF that one token reads: all tensors, without an untied embedding."""
    import gguf

    tensors = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(model).tensors}
    unread = tensors["token_embd.weight"] if "output.weight" in tensors else 0
    return sum(tensors.values()) - unread


def cache_values(model: str) -> int:
    """Return the number of values that the cache of a GGUF's model holds for a position."""
    import gguf

    fields = gguf.GGUFReader(model).fields
    name = fields["general.architecture"].contents()

    def number(key: str, default: int = 0) -> int:
        return int(fields[f"{name}.{key}"].contents()) if f"{name}.{key}" in fields else default

    width = number("attention.key_length", number("embedding_length") // number("attention.head_count"))
    return 2 * number("block_count") * number("attention.head_count_kv") * width
