"""Reduced shapes of the families beyond Llama and Qwen2: every term of each is there, and far from doing nothing.

Windows are shorter than prompts, rope scalings are passed, caps and factors are where they bend what they act on, norms
are random. As in ``shapes``, weights come from a stated seed, so a golden file need not hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from goldens.shapes import Case, config_json
from numpy.typing import NDArray

EXPERTS = {
    "each": ("mlp.gate", *(f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))),
    "mixtral": ("block_sparse_moe.gate", *(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w3", "w2"))),
    "stacks": ("block_sparse_moe.router.layer", "block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
    "turned": ("mlp.router", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
}
"""The router, and gate, up and down of expert {}; or gates above ups, and downs, of all experts.

Or the same (inputs, outputs) with biases: columns of gate and up take turns, and each head of attention has a sink.
"""

PRE = ("input_layernorm", "post_attention_layernorm")
POST = ("post_attention_layernorm", "post_feedforward_layernorm")
BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class FamilyCase(Case):
    """A case whose tensors are those of another family."""

    norms: tuple[str, ...] = PRE  # of a layer
    qk_norm: str = ""  # "head", or "width" of all heads
    fused: bool = False  # q, k, v in one tensor; gate, up in one
    experts: str = ""  # how the checkpoint calls them: a key of EXPERTS
    gate_gain: float = 1.4  # of experts
    dense: tuple[int, ...] = ()  # layers without experts, where others have some
    o_bias: bool = True  # where ``attention_bias`` says that there are biases
    layer_norm: bool = False  # norms have biases
    plain_mlp: tuple[str, ...] = ()  # the linears of an MLP without a gate
    norm_offset: float = 0.0  # of the family: what its norms add to their weights
    embed_gain: float = 0.0  # 0: 2.5 where embeddings are tied, as large as without a norm where they are not
    context: int = 0  # of the engine; 0: as long as the model allows
    at_full_length: bool = field(default=False)  # transformers computes every step as part of a whole context

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each tensor of the checkpoint by its Hugging Face name."""
        c, random = self.config, np.random.RandomState(self.seed)
        hidden, inner, dim, vocab = c["hidden_size"], c["intermediate_size"], self.head_dim, c["vocab_size"]
        q_rows, kv_rows = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        tied, bias = c["tie_word_embeddings"], c["attention_bias"] or c.get("use_bias", False)

        def matrix(rows: int, columns: int, gain: float = 1.4) -> NDArray[np.float32]:
            return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

        def vector(*shape: int) -> NDArray[np.float32]:
            return (random.standard_normal(shape) * 0.4).astype(np.float32)

        def norm(size: int) -> NDArray[np.float32]:
            return (random.uniform(0.5, 1.5, size) - self.norm_offset).astype(np.float32)

        def mixture(layer: str) -> Iterator[tuple[str, Any]]:
            count, wide = c.get("num_experts") or c["num_local_experts"], c.get("moe_intermediate_size", inner)
            router, *names = EXPERTS[self.experts]
            yield f"{layer}.{router}.weight", matrix(count, hidden)
            sizes = (*[(wide, hidden, self.gate_gain)] * 2, (hidden, wide))
            each = [[matrix(*size) for size in sizes] for _ in range(count)]
            if self.experts == "turned":
                yield f"{layer}.{router}.bias", vector(count)
                gate_up = [np.stack([gate, up], axis=1).reshape(2 * wide, hidden) for gate, up, _ in each]
                yield f"{layer}.{names[0]}", np.ascontiguousarray(np.stack([one.T for one in gate_up]))
                yield f"{layer}.{names[0]}_bias", vector(count, 2 * wide)
                yield f"{layer}.{names[1]}", np.ascontiguousarray(np.stack([one[2].T for one in each]))
                yield f"{layer}.{names[1]}_bias", vector(count, hidden)
                return
            if self.experts == "stacks":
                yield f"{layer}.{names[0]}.weight", np.stack([np.concatenate(one[:2]) for one in each])
                yield f"{layer}.{names[1]}.weight", np.stack([one[2] for one in each])
                return
            for expert, one in enumerate(each):
                for name, tensor in zip(names, one, strict=True):
                    yield f"{layer}.{name.format(expert)}.weight", tensor
            if shared := c.get("shared_expert_intermediate_size"):
                for name, size in (("gate", (shared, hidden)), ("up", (shared, hidden)), ("down", (hidden, shared))):
                    yield f"{layer}.mlp.shared_expert.{name}_proj.weight", matrix(*size)
                yield f"{layer}.mlp.shared_expert_gate.weight", matrix(1, hidden)

        def linear(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[tuple[str, Any]]:
            yield f"{name}.weight", matrix(rows, columns)
            if bias:
                yield f"{name}.bias", vector(rows)

        gain = self.embed_gain or (2.5 if tied else float(np.sqrt(hidden)))
        yield "model.embed_tokens.weight", matrix(vocab, hidden, gain)
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            for name in self.norms:
                yield f"{layer}.{name}.weight", norm(hidden)
                if self.layer_norm:
                    yield f"{layer}.{name}.bias", vector(hidden)
            for name, rows in (("q_norm", q_rows), ("k_norm", kv_rows)) if self.qk_norm else ():
                yield f"{layer}.self_attn.{name}.weight", norm(dim if self.qk_norm == "head" else rows)
            if self.fused:
                yield from linear(f"{layer}.self_attn.qkv_proj", q_rows + 2 * kv_rows, hidden)
                yield from linear(f"{layer}.mlp.gate_up_proj", 2 * inner, hidden)
            else:
                for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
                    yield from linear(f"{layer}.self_attn.{name}", rows, hidden, bias)
                if self.experts and i not in self.dense:
                    yield from mixture(layer)
                elif self.plain_mlp:
                    for name, rows, columns in zip(self.plain_mlp, (inner, hidden), (hidden, inner), strict=True):
                        yield from linear(f"{layer}.mlp.{name}", rows, columns, bias)
                else:
                    yield from linear(f"{layer}.mlp.gate_proj", inner, hidden)
                    yield from linear(f"{layer}.mlp.up_proj", inner, hidden)
            yield from linear(f"{layer}.self_attn.o_proj", hidden, q_rows, bias and self.o_bias)
            if self.experts == "turned":
                spread = np.linspace(-1.5, 4.0, c["num_attention_heads"], dtype=np.float32)
                yield f"{layer}.self_attn.sinks", random.permutation(spread)
            if not self.plain_mlp and (not self.experts or i in self.dense):
                yield from linear(f"{layer}.mlp.down_proj", hidden, inner)
        yield "model.norm.weight", norm(hidden)
        if self.layer_norm:
            yield "model.norm.bias", vector(hidden)
        if not tied:
            yield "lm_head.weight", matrix(vocab, hidden, 2.5)


def _case(name: str, architecture: str, model_type: str, *, seed: int = 1, layers: int = 2, **more: Any) -> FamilyCase:
    terms = {key: more.pop(key) for key in FamilyCase.__dataclass_fields__ if key in more}
    sizes: Mapping[str, int] = {"hidden": 72, "inner": 100, "heads": 4, "kv_heads": 2, "vocab": 271, "head_dim": 16}
    sizes = {key: more.pop(key, value) for key, value in sizes.items()}
    config = config_json(**sizes, layers=layers, architectures=[architecture], model_type=model_type, **more)
    return FamilyCase(name, seed=seed, prompt_length=terms.pop("prompt_length", 300), config=config, **terms)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
THETA = {"rope_theta": 10000.0}

DYNAMIC = _case(
    "dynamic",
    "LlamaForCausalLM",
    "llama",
    context=512,
    at_full_length=True,
    max_position_embeddings=64,
    **THETA,
    rope_scaling={"type": "dynamic", "factor": 8.0},
)
YARN_LLAMA = _case("yarn", "LlamaForCausalLM", "llama", rope_parameters={**THETA, **YARN})
YARN_PARTS = _case(
    "yarn-mscale",
    "LlamaForCausalLM",
    "llama",
    rope_parameters={**THETA, **YARN, "mscale": 0.7, "mscale_all_dim": 2.0, "truncate": False},
)
QWEN3 = _case(
    "qwen3", "Qwen3ForCausalLM", "qwen3", qk_norm="head", tie_word_embeddings=True, attention_bias=True, **THETA
)
QWEN3_WINDOW = _case(
    "qwen3-window",
    "Qwen3ForCausalLM",
    "qwen3",
    seed=2,
    qk_norm="head",
    use_sliding_window=True,
    sliding_window=37,
    max_window_layers=1,
    **THETA,
)
MISTRAL = _case("mistral", "MistralForCausalLM", "mistral", seed=2, sliding_window=40, **THETA)
MINISTRAL = _case(
    "ministral",
    "MinistralForCausalLM",
    "ministral",
    layers=3,
    sliding_window=40,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    rope_parameters=THETA,
)
MINISTRAL3 = _case(
    "ministral3",
    "Ministral3ForCausalLM",
    "ministral3",
    rope_parameters={**THETA, **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
)
SMOLLM3 = _case(
    "smollm3",
    "SmolLM3ForCausalLM",
    "smollm3",
    layers=4,
    tie_word_embeddings=True,
    no_rope_layers=[1, 0, 1, 0],
    rope_theta=5000.0,
)
PHI3 = _case("phi3", "Phi3ForCausalLM", "phi3", fused=True, sliding_window=200, **THETA)
_FACTORS = {
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.0, 2.0, 3.5, 6.0, 9.0, 12.0],
}
PHI4 = _case(
    "phi4",
    "Phi3ForCausalLM",
    "phi3",
    fused=True,
    tie_word_embeddings=True,
    partial_rotary_factor=0.75,
    original_max_position_embeddings=128,
    **THETA,
    rope_scaling={"type": "longrope", **_FACTORS},
)
PHI4_SHORT = _case(
    "phi4-short",
    "Phi3ForCausalLM",
    "phi3",
    seed=2,
    fused=True,
    context=384,
    partial_rotary_factor=0.75,
    original_max_position_embeddings=400,
    **THETA,
    rope_scaling={"type": "longrope", **_FACTORS},
)
GRANITE = _case(
    "granite",
    "GraniteForCausalLM",
    "granite",
    embed_gain=1.0,
    embedding_multiplier=12.0,
    attention_multiplier=0.15,
    residual_multiplier=0.6,
    logits_scaling=1.6,
    **THETA,
)
OLMO2 = _case("olmo2", "Olmo2ForCausalLM", "olmo2", seed=2, norms=POST, qk_norm="width", **THETA)
OLMO3 = _case(
    "olmo3",
    "Olmo3ForCausalLM",
    "olmo3",
    layers=4,
    norms=POST,
    qk_norm="width",
    sliding_window=40,
    rope_theta=500000.0,
    rope_scaling=YARN,
)
STARCODER2 = _case(
    "starcoder2",
    "Starcoder2ForCausalLM",
    "starcoder2",
    layer_norm=True,
    plain_mlp=("c_fc", "c_proj"),
    tie_word_embeddings=True,
    use_bias=True,
    hidden_act="gelu_pytorch_tanh",
    norm_epsilon=0.01,
    sliding_window=40,
    **THETA,
)
GEMMA = {"norms": BOTH, "norm_offset": 1.0, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA2 = _case(
    "gemma2",
    "Gemma2ForCausalLM",
    "gemma2",
    **GEMMA,
    embed_gain=1.0,
    sliding_window=40,
    query_pre_attn_scalar=24,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=6.0,
    **THETA,
)
GEMMA3 = _case(
    "gemma3",
    "Gemma3ForCausalLM",
    "gemma3_text",
    **GEMMA,
    qk_norm="head",
    tie_word_embeddings=True,
    embed_gain=1.3,
    layers=4,
    sliding_window=40,
    sliding_window_pattern=2,
    query_pre_attn_scalar=24,
    rope_theta=50000.0,
    rope_local_base_freq=300.0,
    rope_scaling={"rope_type": "linear", "factor": 4.0},
)

QWEN3_MOE = _case(
    "qwen3-moe",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    layers=3,
    qk_norm="head",
    experts="each",
    dense=(1,),
    num_experts=9,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[1],
    **THETA,
)
QWEN3_MOE_SHARES = _case(
    "qwen3-moe-shares",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    layers=4,
    qk_norm="head",
    experts="each",
    dense=(0, 2),
    tie_word_embeddings=True,
    num_experts=20,
    num_experts_per_tok=5,
    moe_intermediate_size=64,
    norm_topk_prob=False,
    decoder_sparse_step=2,
    mlp_only_layers=[],
    use_sliding_window=True,
    sliding_window=37,
    **THETA,
)
QWEN2_MOE = _case(
    "qwen2-moe",
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    seed=2,
    attention_bias=True,
    o_bias=False,
    experts="each",
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=48,
    shared_expert_intermediate_size=104,
    norm_topk_prob=False,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    qkv_bias=True,
    **THETA,
)
OLMOE = _case(
    "olmoe",
    "OlmoeForCausalLM",
    "olmoe",
    hidden=64,
    qk_norm="width",
    experts="each",
    num_experts=8,
    num_experts_per_tok=4,
    norm_topk_prob=False,
    **THETA,
)
MIXTRAL = _case(
    "mixtral",
    "MixtralForCausalLM",
    "mixtral",
    experts="mixtral",
    num_local_experts=6,
    num_experts_per_tok=2,
    sliding_window=None,
    rope_theta=1e6,
)
GRANITE_MOE = _case(
    "granite-moe",
    "GraniteMoeForCausalLM",
    "granitemoe",
    experts="stacks",
    embed_gain=1.0,
    num_local_experts=10,
    num_experts_per_tok=4,
    embedding_multiplier=12.0,
    attention_multiplier=0.15,
    residual_multiplier=0.6,
    logits_scaling=1.6,
    **THETA,
)
GPT_OSS = _case(
    "gpt-oss",
    "GptOssForCausalLM",
    "gpt_oss",
    seed=4,
    layers=4,
    attention_bias=True,
    experts="turned",
    num_local_experts=6,
    num_experts_per_tok=3,
    sliding_window=40,
    swiglu_alpha=1.3,
    swiglu_limit=1.5,
    rope_parameters={"rope_theta": 10000.0, **YARN, "truncate": False},
)
GPT_OSS_PLAIN = _case(
    "gpt-oss-plain",
    "GptOssForCausalLM",
    "gpt_oss",
    seed=2,
    hidden=64,
    inner=64,
    attention_bias=True,
    experts="turned",
    gate_gain=4.0,
    num_local_experts=5,
    num_experts_per_tok=2,
    rope_theta=150000.0,
    rope_scaling={**YARN, "beta_fast": 32.0, "truncate": False},
)

FAMILY_CASES = (
    DYNAMIC,
    YARN_LLAMA,
    YARN_PARTS,
    QWEN3,
    QWEN3_WINDOW,
    MISTRAL,
    MINISTRAL,
    MINISTRAL3,
    SMOLLM3,
    PHI3,
    PHI4,
    PHI4_SHORT,
    GRANITE,
    STARCODER2,
    OLMO2,
    OLMO3,
    GEMMA2,
    GEMMA3,
    QWEN3_MOE,
    QWEN3_MOE_SHARES,
    QWEN2_MOE,
    OLMOE,
    MIXTRAL,
    GRANITE_MOE,
    GPT_OSS,
    GPT_OSS_PLAIN,
)
