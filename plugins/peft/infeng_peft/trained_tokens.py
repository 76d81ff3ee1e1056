"""Single trained rows of the embedding and the head (PEFT's ``trainable_token_indices``).

PEFT replaces rows of a matrix W by ``index_copy`` (``peft/tuners/trainable_tokens/layer.py``). A replaced row is W's
plus a distance, so all of them together are a low-rank change of W: one factor has a 1 for each token, the other the
distances. For the head A holds the distances, for embeddings, whose A has a row for each token of the vocabulary, B.
"""

from __future__ import annotations

import numpy as np

from infeng_core.api.adapters import AdapterDtype, TargetModule
from infeng_core.api.formats import PANEL_ROWS, PackedTensor
from infeng_peft.weights import Delta, Floats, TrainedRows

ONE: dict[AdapterDtype, float] = {"f32": 1.0, "bf16": 1.0, "int8": 127.0 / 128.0}
"""A number near 1 that B stores without rounding: int8 rounds scales to bf16, and 127/128 is 127 times 2**-7."""


def as_delta(site: TargetModule, trained: TrainedRows, base: PackedTensor, dtype: AdapterDtype) -> Delta:
    """Return the change of the site's weight, packed as ``base``, by which its rows become the trained ones."""
    tokens, count = np.array(trained.tokens), len(trained.tokens)
    distances = trained.rows - packed_rows(base, trained.tokens)
    one = np.float32(1.0 if site.kind == "embedding" else ONE[dtype])
    places = np.zeros((site.part.rows, count), np.float32)  # (vocab, tokens)
    places[tokens, np.arange(count)] = one
    a, b = (places.T, distances.T) if site.kind == "embedding" else (distances / one, places)
    return Delta(site, a, b, scaling=1.0, magnitude=None, bias=None, is_scaled=False)


def packed_rows(base: PackedTensor, tokens: tuple[int, ...]) -> Floats:
    """Return rows of a packed matrix of one part, (tokens, k), as kernels read them."""
    found = np.empty((len(tokens), base.k), np.float32)
    for place, token in enumerate(tokens):
        panel, lane = divmod(token, PANEL_ROWS)
        found[place] = base.quant.unpack(base.buffer, base.offset, 1, base.k, first_panel=panel)[lane]
    return found
