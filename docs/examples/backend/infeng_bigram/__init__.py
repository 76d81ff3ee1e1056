"""A backend: the model without its layers, ``logits = embedding of the last token x head``. ``backend: {use: bigram}``.

It uses no kernels, so no kernel library is opened, and remembers nothing, so its cache takes next to no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import EngineConfig, PluginError, hookimpl
from infeng_core.api.engines import Batch, BoundOp, Limits, PackedAdapter
from infeng_core.api.formats import LoadedModel, ModelConfig


class Bigram:
    """Makes executables."""

    uses_kernels = False

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return 1: nothing is kept of a position, and a block must have a size."""
        return 1

    def available_bytes(self) -> int | None:
        """Return None: how much memory there is does not matter."""
        return None

    def compile(self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: None) -> Executable:
        """Return the model, ready to run."""
        return Executable(model, limits)


class Executable:
    """Two matrices."""

    kv_bytes = 0
    scratch_bytes = 0
    max_stacked_rank = 0  # no adapters

    def __init__(self, model: LoadedModel, limits: Limits) -> None:
        """Take the embedding and the head as float32."""
        self._embed = model.tensors["embed"].dequantize()  # (vocab, hidden)
        head = model.tensors.get("lm_head")
        self._head = self._embed if head is None else head.dequantize()  # (vocab, hidden)
        self._rows = (1, limits.max_rows)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Return the logits of the sampled rows, (samples, vocab)."""
        logits: NDArray[np.float32] = self._embed[batch.tokens[batch.sample_rows]] @ self._head.T
        return logits.astype(np.float32)

    def load_adapter(self, adapter: PackedAdapter) -> NoReturn:
        """Raise PluginError."""
        raise PluginError("backend bigram", "it has no adapters", "use backend native")

    def bound(self) -> Sequence[BoundOp]:
        """Return the only op."""
        return [BoundOp("linear", "head", self._rows, "bigram", "matmul", "backend.use is bigram")]

    def cancel(self) -> None:
        """Do nothing: a step is over at once."""

    def close(self) -> None:
        """Let go of the matrices."""
        del self._embed, self._head


@hookimpl
def infeng_backends() -> dict[str, Any]:
    """Return the backend."""
    return {"bigram": Bigram()}
