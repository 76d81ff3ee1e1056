"""The layout of Granite Switch's checkpoints (granite-switch 0.1.1 of generative-computing, ``config.py``, ``hf/``).

A Granite model whose q, k and v, and gate and up, are one matrix each, with the A's and B's of all adapters stacked
beside them: A (adapters, 1, rank, inputs) and B (adapters, 1, outputs, rank), padded to the largest rank; B is
multiplied by alpha / r already. A control token of each adapter makes it act from there on, and is embedded as another
token. Two layers more are counted than there are, for the module that looks for control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_core.api import ModelError, model_file, read_bytes
from infeng_core.api.formats import Fields, parse_json, show

ARCHITECTURE = "GraniteSwitchForCausalLM"
APART = (
    "use the base and the adapters as they are published apart, which its BUILD.md names: ibm-granite/granite-4.1-8b "
    "with --lora NAME=DIR, a folder of ibm-granite/granitelib-rag-r1.0 and so on"
)
SWITCH_LAYERS = 2  # counted in num_hidden_layers
SWITCH = "model.switch."  # its tensors follow from the configuration
MAX_CONFIG, MAX_ADAPTERS, MAX_LAYERS = 4 << 20, 256, 1024
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
COPIED = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "hidden_act"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "initializer_range"),
)
"""Keys of config.json that the base has too."""


@dataclass(frozen=True)
class Module:
    """One matrix of a layer in the checkpoint, and the modules of Granite whose outputs are its rows, in order."""

    stored: str  # "self_attn.qkv_proj"
    modules: tuple[tuple[str, int], ...]  # ("self_attn.q_proj", 4096), ...
    inputs: int

    def slices(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (module, end of the names of its A and B, first row, rows) of each."""
        first = 0
        for place, (module, rows) in enumerate(self.modules):
            yield module, f"_slices.{place}" if len(self.modules) > 1 else "", first, rows
            first += rows


@dataclass(frozen=True)
class Switch:
    """What config.json says."""

    base: Mapping[str, Any]  # config.json of the base
    layers: int
    vocab: int
    names: tuple[str, ...]  # of the adapters
    ranks: tuple[int, ...]
    control: tuple[int, ...]  # token of each
    substitutes: tuple[int, ...]  # as which it is embedded
    is_tied: bool
    modules: tuple[Module, ...]  # of a layer


def read_switch(directory: Path) -> Switch:
    """Read config.json of a checkpoint; raises ModelError for another one, and for what is not run."""
    path = directory / "config.json"
    try:
        document = parse_json(read_bytes(model_file(directory, path.name), MAX_CONFIG))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}", f"cannot be read ({error})", "give a complete model directory") from None
    fields = Fields(document, path, remedy=APART)
    if fields.data.get("architectures") != [ARCHITECTURE]:
        fields.fail("architectures", f"is {show(fields.data.get('architectures'))}, {ARCHITECTURE} is expected")
    _refuse_others(fields)
    hidden, heads = fields.integer("hidden_size", 1, 1 << 20), fields.integer("num_attention_heads", 1, 1 << 12)
    head = fields.integer("head_dim", 1, 1 << 12, hidden // heads)
    kv_heads = fields.integer("num_key_value_heads", 1, heads, heads)
    inner = fields.integer("shared_intermediate_size", 1, 1 << 24)
    layers = fields.integer("num_hidden_layers", SWITCH_LAYERS + 1, MAX_LAYERS) - SWITCH_LAYERS
    vocab = fields.integer("vocab_size", 1, 1 << 24)
    count = fields.integer("num_adapters", 1, MAX_ADAPTERS)
    names = _names(fields, count)
    ranks = _counted(fields, "adapter_ranks", count, 1, 1 << 12)
    # A token before those of the adapters may return to the base.
    control = _counted(fields, "adapter_token_ids", count, 0, vocab - 1, more=1)
    substitutes = _counted(fields, "adapter_substitute_token_ids", count, 0, vocab - 1, more=1)
    if len(set(control)) < count:
        fields.fail("adapter_token_ids", "names a token twice")
    tied = fields.flag("tie_word_embeddings", True)
    base = {key: fields.data[key] for key in COPIED if fields.data.get(key) is not None}
    base |= {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "intermediate_size": inner}
    base |= {"num_hidden_layers": layers, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
    q, kv = heads * head, kv_heads * head
    projections = (("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    modules = (
        Module("self_attn.qkv_proj", projections, hidden),
        Module("self_attn.o_proj", (("self_attn.o_proj", hidden),), q),
        Module("shared_mlp.input_linear", (("mlp.gate_proj", inner), ("mlp.up_proj", inner)), hidden),
        Module("shared_mlp.output_linear", (("mlp.down_proj", hidden),), inner),
    )
    return Switch(base, layers, vocab, names, ranks, control, substitutes, tied, modules)


def _refuse_others(fields: Fields) -> None:
    """Raise for checkpoints of the other versions of this layout, and for models that it holds beside Granite 4."""
    if "ms_code_m" not in fields.data or fields.data.get("switch_type", "multi") != "multi":
        fields.fail("ms_code_m", "is missing: an older layout, in which control tokens are hidden from attention")
    for key, wanted in (
        ("dual_stream", False),
        ("num_local_experts", 0),
        ("attention_bias", False),
        ("qk_norm", False),
    ):
        if fields.data.get(key, wanted) not in (wanted, None):
            fields.fail(key, f"is {show(fields.data[key])}, which is not written apart")
    if fields.data.get("position_embedding_type", "rope") != "rope":
        fields.fail("position_embedding_type", f"is {show(fields.data['position_embedding_type'])}, not rope")


def _names(fields: Fields, count: int) -> tuple[str, ...]:
    found = fields.data.get("adapter_names")
    if (
        not isinstance(found, list)
        or len({*map(str, found)}) != len(found)
        or len(found) != count
        or not all(isinstance(name, str) and NAME.fullmatch(name) for name in found)
    ):
        fields.fail("adapter_names", f"is {show(found)}, it must be {count} different names of files")
    return tuple(found)


def _counted(fields: Fields, key: str, count: int, low: int, high: int, more: int = 0) -> tuple[int, ...]:
    found = fields.integers(key, low, high)
    if not count <= len(found) <= count + more:
        fields.fail(key, f"has {len(found)} entries, there are {count} adapters")
    return found[-count:]
