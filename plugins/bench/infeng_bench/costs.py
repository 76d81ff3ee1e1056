"""What one token costs by arithmetic alone: multiplications and bytes, to set against what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infeng_core import api

if TYPE_CHECKING:
    from infeng_core.api import LoadedModel

BLOCK = 16  # positions per block of the cache


@dataclass(frozen=True)
class Costs:
    """Of one model in memory."""

    weight_bytes: int
    """Bytes of weights that a step reads however many rows it has, the head included; a row of the embedding is not."""
    block_macs: int
    """Multiply-adds of one row in the linears of all layers."""
    head_macs: int
    """Multiply-adds of one sampled row in the head."""
    attention_macs: int
    """Multiply-adds of one row for each position that it attends to, all layers."""
    kv_bytes: int
    """Bytes of the cache per position, all layers."""

    def decode_bytes(self, rows: int, context: int) -> int:
        """Return the bytes that a step of ``rows`` sequences of ``context`` positions reads."""
        return self.weight_bytes + rows * context * self.kv_bytes

    def decode_macs(self, rows: int, context: int) -> int:
        """Return the multiply-adds of such a step."""
        return rows * (self.block_macs + self.head_macs + context * self.attention_macs)

    def prefill_macs(self, rows: int, context: int) -> int:
        """Return the multiply-adds of ``rows`` prompts of ``context`` tokens; row i attends to i + 1 positions."""
        attended = context * (context + 1) // 2
        return rows * (context * self.block_macs + self.head_macs + attended * self.attention_macs)


def costs(model: LoadedModel, kv_format: str) -> Costs:
    """Return the costs of a loaded model with a cache of ``kv_format``; padding counts, for it is computed and read."""
    shape = model.config
    head = "embed" if shape.tie_embeddings else "lm_head"
    read = {name: tensor for name, tensor in model.tensors.items() if name != "embed" or head == "embed"}
    macs = {name: tensor.panels * 16 * tensor.k for name, tensor in read.items()}
    per_block = api.KvCache.bytes_per_block(
        kv_format, layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
    return Costs(
        weight_bytes=sum(tensor.panels * tensor.panel_bytes for tensor in read.values()),
        block_macs=sum(count for name, count in macs.items() if name != head),
        head_macs=macs[head],
        attention_macs=2 * shape.layers * shape.heads * shape.head_dim,
        kv_bytes=per_block // BLOCK,
    )
