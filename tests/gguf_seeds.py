"""Small valid GGUF files that tests damage: models of each tokenizer, a mixture of experts, an adapter."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import gguf_gpt_oss
import gguf_writing
import numpy as np
from expert_deltas import ALPHA, Deltas
from goldens.shapes import Case, config_json
from mxfp4_parts import CASE

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
GPT_OSS = dataclasses.replace(CASE, config=CASE.config | SIZES)
LLAMA = Case(
    "llama",
    seed=1,
    prompt_length=8,
    config=config_json(hidden=32, inner=32, layers=1, heads=2, kv_heads=1, vocab=8, head_dim=16, rope_theta=10000.0),
)
LETTERS = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "c": 5, "abc": 6, "<|im_end|>": 7}
BYTE_LEVEL = {"model": {"vocab": LETTERS, "merges": [["a", "b"], ["ab", "c"]]}}
PIECES = ["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a", "b", "<0x41>"]
KINDS = ("F16", "Q4_0", "Q8_0", "Q5_1", "BF16", "MXFP4")


def llama(path: Path, *, has_pieces: bool) -> None:
    """Write a Llama of as many types as it has matrices, with a byte-level vocabulary or SentencePiece's."""
    writer = gguf.GGUFWriter(str(path), "llama")
    gguf_writing.add_keys(writer, gguf_writing.numbers(LLAMA.config, LLAMA.head_dim))
    if has_pieces:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(PIECES)
        writer.add_token_scores([-float(number) for number in range(len(PIECES))])
        writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 6])
    else:
        gguf_writing.add_vocabulary(writer, BYTE_LEVEL)
        writer.add_chat_template("{{ messages }}")
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_tensor("rope_freqs.weight", np.ones(LLAMA.head_dim // 2, np.float32))
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    for number, (name, values) in enumerate(LLAMA.tensors()):
        to = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else KINDS[number % len(KINDS)]]
        theirs = table.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(theirs, gguf.quantize(values, to), raw_dtype=to)
    gguf_writing.finish(writer)


def adapter(path: Path) -> None:
    """Write LoRA on all experts of the gpt-oss here, and on its queries."""
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, values in Deltas(GPT_OSS, 1).stacks().items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    gguf_writing.finish(writer)


def write(folder: Path) -> list[Path]:
    """Write all files and return their paths."""
    oss: dict[str, Any] = {"case": GPT_OSS, "vocabulary": BYTE_LEVEL}
    llama(folder / "bytes.gguf", has_pieces=False)
    llama(folder / "pieces.gguf", has_pieces=True)
    gguf_gpt_oss.write(folder / "experts.gguf", dict(GPT_OSS.tensors()), "MXFP4", **oss)
    adapter(folder / "adapter.gguf")
    return sorted(folder.glob("*.gguf"))
