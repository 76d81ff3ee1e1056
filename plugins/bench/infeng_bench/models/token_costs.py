"""The computed cost of a token in multiply-adds and bytes, for comparison with the machine's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infeng_core.api import formats as formats_api
from infeng_core.api import kernels as kernels_api

if TYPE_CHECKING:
    from infeng_core.api.formats import LoadedModel

BLOCK = 16  # positions per block of the cache


@dataclass(frozen=True)
class Costs:
    """The costs of one model."""

    weight_bytes: int
    """Bytes of weights that a step of one row reads, with its active experts and the head, without the embedding."""
    block_macs: int  # multiply-adds of one row in the linears of all layers, with its active experts
    head_macs: int  # multiply-adds of one sampled row in the head
    attention_macs: int  # multiply-adds of one row per attended position, all layers
    kv_bytes: int  # bytes of the cache per position, all layers
    expert_bytes: int = 0  # bytes of all experts of all layers
    share: float = 1.0  # active experts per row over all experts of a layer

    @property
    def macs_per_token(self) -> int:
        """Multiply-adds of the linears for one row, the head included."""
        return self.block_macs + self.head_macs

    def step_bytes(self, rows: int) -> int:
        """Return the bytes of weights that a step of ``rows`` rows reads if rows choose experts independently.

        Each row uses ``share`` of a layer's experts, so ``(1 - share) ** rows`` of them are not read.
        """
        more = 1 - (1 - self.share) ** rows - self.share
        return self.weight_bytes + round(self.expert_bytes * more)

    def decode_bytes(self, rows: int, context: int) -> int:
        """Return the bytes that a step of ``rows`` sequences of ``context`` positions reads."""
        return self.step_bytes(rows) + rows * context * self.kv_bytes

    def decode_macs(self, rows: int, context: int) -> int:
        """Return the multiply-adds of a step of ``rows`` sequences of ``context`` positions."""
        return rows * (self.block_macs + self.head_macs + context * self.attention_macs)

    def prefill_macs(self, rows: int, context: int) -> int:
        """Return the multiply-adds of ``rows`` prompts of ``context`` tokens; row i attends to i + 1 positions."""
        attended = context * (context + 1) // 2
        return rows * (context * self.block_macs + self.head_macs + attended * self.attention_macs)


def costs(model: LoadedModel, kv_format: str) -> Costs:
    """Return the costs of a loaded model with a cache of ``kv_format``; padding counts, since it is computed."""
    shape = model.config
    head = "embed" if shape.tie_embeddings else "lm_head"
    read = {name: tensor for name, tensor in model.tensors.items() if name != "embed" or head == "embed"}
    experts = {spec.name for spec in formats_api.layout(shape).tensors if spec.experts}
    share = shape.experts_per_token / shape.experts if shape.experts else 1.0
    active = {name: share if name in experts else 1.0 for name in read}
    macs = {name: round(active[name] * tensor.panels * 16 * tensor.k) for name, tensor in read.items()}
    per_block = kernels_api.KvCache.bytes_per_block(kv_format, layers=shape.layers, **shape.cache_heads)
    return Costs(
        weight_bytes=sum(round(active[name] * tensor.nbytes) for name, tensor in read.items()),
        block_macs=sum(count for name, count in macs.items() if name != head),
        head_macs=macs[head],
        attention_macs=shape.layers * shape.heads * (shape.head_dim + shape.cache_heads["v_head_dim"]),
        kv_bytes=per_block // BLOCK,
        expert_bytes=sum(tensor.nbytes for name, tensor in read.items() if name in experts),
        share=share,
    )
