"""Ways to break a model directory. Each takes a sound Hugging Face directory and spoils one thing in it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Header = dict[str, Any]
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def _weights(directory: Path) -> Path:
    return directory / "model.safetensors"


def _edit_header(directory: Path, change: Callable[[Header], object]) -> None:
    raw = _weights(directory).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    _weights(directory).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def _edit_tensors(directory: Path, change: Callable[[dict[str, NDArray[Any]]], object]) -> None:
    tensors = load_file(_weights(directory))
    change(tensors)
    save_file(tensors, _weights(directory))


def _edit_config(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


def truncated_data(d: Path) -> None:
    """Cut the last kilobyte off the weights."""
    _weights(d).write_bytes(_weights(d).read_bytes()[:-1024])


def truncated_header(d: Path) -> None:
    """Keep the first hundred bytes."""
    _weights(d).write_bytes(_weights(d).read_bytes()[:100])


def empty_file(d: Path) -> None:
    """Keep nothing."""
    _weights(d).write_bytes(b"")


def lying_header_length(d: Path) -> None:
    """Announce a header of nearly 2^64 bytes."""
    _weights(d).write_bytes(struct.pack("<Q", 2**64 - 8) + _weights(d).read_bytes()[8:])


def header_is_no_json(d: Path) -> None:
    """Put a comma where the header's first key should be."""
    raw = bytearray(_weights(d).read_bytes())
    raw[9] = ord(",")
    _weights(d).write_bytes(bytes(raw))


def offsets_past_the_end(d: Path) -> None:
    """Let a tensor end beyond the file."""
    _edit_header(d, lambda h: h[Q_PROJ].update(data_offsets=[h[Q_PROJ]["data_offsets"][0], 2**40]))


def offsets_overflow(d: Path) -> None:
    """Let a tensor lie where the sum of offset and size does not fit in 64 bits."""
    _edit_header(d, lambda h: h[Q_PROJ].update(data_offsets=[2**63 - 64, 2**63 - 64 + 27648]))


def shape_overflow(d: Path) -> None:
    """Let the number of elements overflow 64 bits to zero."""
    _edit_header(d, lambda h: h[Q_PROJ].update(shape=[2**32, 2**32]))


def wrong_shape(d: Path) -> None:
    """Store a projection that is one row short."""
    _edit_tensors(d, lambda t: t.update({Q_PROJ: t[Q_PROJ][:-1].copy()}))


def wrong_dtype(d: Path) -> None:
    """Store integers."""
    _edit_tensors(d, lambda t: t.update({Q_PROJ: t[Q_PROJ].astype(np.int32)}))


def missing_tensor(d: Path) -> None:
    """Leave a projection out."""
    _edit_tensors(d, lambda t: t.pop(Q_PROJ))


def nan_weight(d: Path) -> None:
    """Store one weight that is not a number."""

    def poison(tensors: dict[str, NDArray[Any]]) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ].copy()
        tensors[Q_PROJ][3, 5] = np.nan

    _edit_tensors(d, poison)


def infinite_norm(d: Path) -> None:
    """Store one infinite norm weight."""
    _edit_tensors(d, lambda t: t.update({"model.norm.weight": np.full_like(t["model.norm.weight"], np.inf)}))


def missing_shard(d: Path) -> None:
    """Name two shards in the index and bring only one."""
    tensors = load_file(_weights(d))
    names = sorted(tensors)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({name: tensors[name] for name in names[:5]}, d / first)
    weight_map = {name: first if i < 5 else second for i, name in enumerate(names)}
    (d / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    _weights(d).unlink()


def no_weights(d: Path) -> None:
    """Bring no weights at all."""
    _weights(d).unlink()


def only_bin_weights(d: Path) -> None:
    """Bring the weights as a pickle, which is not read."""
    _weights(d).rename(d / "pytorch_model.bin")


def missing_tokenizer(d: Path) -> None:
    """Bring no tokenizer."""
    (d / "tokenizer.json").unlink()


def broken_tokenizer(d: Path) -> None:
    """Cut the tokenizer short."""
    (d / "tokenizer.json").write_text((d / "tokenizer.json").read_text()[:50])


def missing_config(d: Path) -> None:
    """Bring no config.json."""
    (d / "config.json").unlink()


def broken_config(d: Path) -> None:
    """Cut config.json short."""
    (d / "config.json").write_text((d / "config.json").read_text()[:-20])


def config_is_a_list(d: Path) -> None:
    """Bring JSON that is no object."""
    (d / "config.json").write_text("[1, 2]")


def bottomless_config(d: Path) -> None:
    """Nest config.json deeper than any stack."""
    (d / "config.json").write_text("[" * 100_000)


def endless_config(d: Path) -> None:
    """Let config.json be a device."""
    (d / "config.json").unlink()
    (d / "config.json").symlink_to("/dev/zero")


def sparse_generation_config(d: Path) -> None:
    """Bring a terabyte of nothing."""
    (d / "generation_config.json").touch()
    os.truncate(d / "generation_config.json", 1 << 40)


def index_with_nul(d: Path) -> None:
    """Name a shard as no file can be named."""
    index = {"weight_map": {Q_PROJ: "a\0b.safetensors"}}
    (d / "model.safetensors.index.json").write_text(json.dumps(index))
    _weights(d).unlink()


def link_out(d: Path) -> None:
    """Let a file that is copied be a link to a secret."""
    (d / "vocab.json").symlink_to("/etc/passwd")


def unknown_family(d: Path) -> None:
    """Claim another family."""
    _edit_config(d, architectures=["MambaForCausalLM"], model_type="mamba")


def negative_size(d: Path) -> None:
    """Claim a negative hidden size."""
    _edit_config(d, hidden_size=-72)


def zero_layers(d: Path) -> None:
    """Claim no layers."""
    _edit_config(d, num_hidden_layers=0)


def huge_size(d: Path) -> None:
    """Claim a size that no memory holds."""
    _edit_config(d, intermediate_size=10**15)


def size_as_text(d: Path) -> None:
    """Give a number as words."""
    _edit_config(d, hidden_size="seventy-two")


def heads_that_do_not_divide(d: Path) -> None:
    """Claim key/value heads that do not divide the heads."""
    _edit_config(d, num_key_value_heads=4)


def another_activation(d: Path) -> None:
    """Claim a feed-forward layer that this family does not have."""
    _edit_config(d, hidden_act="relu")


def unknown_rope(d: Path) -> None:
    """Claim a rope scaling that is not known."""
    _edit_config(d, rope_scaling={"rope_type": "spiral", "factor": 2.0})


# What is spoiled, and the file that the error must name.
WAYS: tuple[tuple[Callable[[Path], None], str], ...] = (
    (truncated_data, "model.safetensors"),
    (truncated_header, "model.safetensors"),
    (empty_file, "model.safetensors"),
    (lying_header_length, "model.safetensors"),
    (header_is_no_json, "model.safetensors"),
    (offsets_past_the_end, "model.safetensors"),
    (offsets_overflow, "model.safetensors"),
    (shape_overflow, "model.safetensors"),
    (wrong_shape, "model.safetensors"),
    (wrong_dtype, "model.safetensors"),
    (missing_tensor, "q_proj"),
    (nan_weight, "q_proj"),
    (infinite_norm, "model.norm.weight"),
    (missing_shard, "model-00002-of-00002.safetensors"),
    (no_weights, "model.safetensors"),
    (only_bin_weights, "pytorch_model.bin"),
    (missing_tokenizer, "tokenizer.json"),
    (broken_tokenizer, "tokenizer.json"),
    (missing_config, "config.json"),
    (broken_config, "config.json"),
    (config_is_a_list, "config.json"),
    (bottomless_config, "config.json"),
    (endless_config, "config.json"),
    (sparse_generation_config, "generation_config.json"),
    (index_with_nul, "model.safetensors.index.json"),
    (link_out, "vocab.json"),
    (unknown_family, "config.json"),
    (negative_size, "hidden_size"),
    (zero_layers, "num_hidden_layers"),
    (huge_size, "intermediate_size"),
    (size_as_text, "hidden_size"),
    (heads_that_do_not_divide, "num_key_value_heads"),
    (another_activation, "hidden_act"),
    (unknown_rope, "rope"),
)
