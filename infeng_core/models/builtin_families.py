"""The families of the core: each is the decoder of ``models.weights`` and ``models.decoder`` with arguments of its own.

The wheel infeng-convert reads their config.json and names the paper of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from infeng_core.models.config import ModelConfig
from infeng_core.models.decoder import graph
from infeng_core.models.ops import Graph
from infeng_core.models.weights import BOTH_NORMS, POST_NORMS, ExpertNames, Layout, decoder


@dataclass(frozen=True)
class DecoderFamily:
    """A family of decoders; ``weights`` gives the tensors of a model, ``graph`` its forward pass."""

    FAMILY: str
    ARCHITECTURES: tuple[str, ...]
    weights: Callable[[ModelConfig], Layout] = decoder
    graph: Callable[[ModelConfig], Graph] = graph


GRANITE = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate="",
    up="",
    down="",
    gate_up_stack="block_sparse_moe.input_linear.weight",
    down_stack="block_sparse_moe.output_linear.weight",
)
MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1.weight",
    up="block_sparse_moe.experts.{}.w3.weight",
    down="block_sparse_moe.experts.{}.w2.weight",
)
GPT_OSS = ExpertNames(router="mlp.router", gate="", up="", down="", has_bias=True, is_turned=True)

UNBIASED = partial(decoder, qkv_bias=False, o_bias=False)
POST_NORMED = partial(decoder, norms=POST_NORMS, qk_norm="width")

_offset = partial(graph, norm_offset=1.0)

FAMILIES = (
    DecoderFamily("llama", ("LlamaForCausalLM",)),
    DecoderFamily("qwen2", ("Qwen2ForCausalLM",), partial(decoder, qkv_bias=True, o_bias=False)),
    DecoderFamily(
        "qwen2_moe",
        ("Qwen2MoeForCausalLM",),
        partial(decoder, qkv_bias=True, o_bias=False, experts=ExpertNames()),
    ),
    DecoderFamily("qwen3", ("Qwen3ForCausalLM",), partial(decoder, qk_norm="head")),
    DecoderFamily("qwen3_moe", ("Qwen3MoeForCausalLM",), partial(decoder, qk_norm="head", experts=ExpertNames())),
    DecoderFamily("mistral", ("MistralForCausalLM",), UNBIASED),
    DecoderFamily("ministral", ("MinistralForCausalLM",), UNBIASED),
    DecoderFamily("ministral3", ("Ministral3ForCausalLM",), UNBIASED),
    DecoderFamily("mixtral", ("MixtralForCausalLM",), partial(UNBIASED, experts=MIXTRAL)),
    DecoderFamily("phi3", ("Phi3ForCausalLM",), partial(UNBIASED, fused=True)),
    DecoderFamily("smollm3", ("SmolLM3ForCausalLM",)),
    DecoderFamily(
        "starcoder2", ("Starcoder2ForCausalLM",), partial(decoder, layer_norm=True, plain_mlp=("c_fc", "c_proj"))
    ),
    DecoderFamily("granite", ("GraniteForCausalLM",)),
    DecoderFamily("granitemoe", ("GraniteMoeForCausalLM",), partial(decoder, experts=GRANITE)),
    DecoderFamily("olmo2", ("Olmo2ForCausalLM",), POST_NORMED),
    DecoderFamily("olmo3", ("Olmo3ForCausalLM",), POST_NORMED),
    DecoderFamily("olmoe", ("OlmoeForCausalLM",), partial(decoder, qk_norm="width", experts=ExpertNames())),
    DecoderFamily("gemma2", ("Gemma2ForCausalLM",), partial(decoder, norms=BOTH_NORMS), _offset),
    DecoderFamily("gemma3_text", ("Gemma3ForCausalLM",), partial(decoder, norms=BOTH_NORMS, qk_norm="head"), _offset),
    DecoderFamily("gpt_oss", ("GptOssForCausalLM",), partial(decoder, experts=GPT_OSS, sinks=True)),
)
