"""Random models of known shapes, made once and kept in the cache: speed does not depend on the values of weights.

Weights are normal with deviation 0.02 (norm weights 1), stored as f16 in one safetensors file. The tokenizer gives one
id per byte and fills the rest of the vocabulary with unused words. A mixture of experts, whose checkpoint could exceed
the memory several times, is packed as it is drawn (``infeng_bench.models.random_checkpoint``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import cached_model, conversion_key, convert, pack_checkpoint, parse_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

from infeng_bench.models import shapes
from infeng_bench.models.cache import digest, header, made_once
from infeng_bench.models.random_checkpoint import Drawn
from infeng_bench.models.shapes import hugging_face_config
from infeng_core.api import cache_root
from infeng_core.api.formats import FormatChoice, format_lookup, layout

VERSION = 1  # part of the cache key; raised when the written files change
EMBED_FORMAT = "int8-row"  # of embeddings beside integer linears, as in the engine's default
CHUNK = 1 << 22  # values drawn at a time
WEIGHTS = "model.safetensors"
SPECIAL = ("<unk>", "<s>", "</s>")


def hf_directory(name_or_config: str | Path) -> Path:
    """Return a Hugging Face directory of random weights, made on the first call.

    name_or_config: a name that ``shapes`` knows or a config.json, ``@POSITIONS`` behind it for a longer one. Raises
    UsageError, ModelError, or ResourceError if the disk is full.
    """
    config = hugging_face_config(name_or_config)
    destination = cache_root() / "bench" / f"{_stem(name_or_config)}-{_digest(config)}"
    name, positions = shapes.split(name_or_config)
    return made_once(destination, WEIGHTS, lambda folder: _write(config, folder, name if positions else None))


def native_directory(name_or_config: str | Path, format: str) -> Path:
    """Return an engine-native directory of the same weights in ``format``, made on the first call.

    Linears have ``format``; embeddings are int8-row beside integer formats. Raises the errors of ``hf_directory``, and
    PluginError for an unknown format.
    """
    from infeng_core.api import Plugins

    lookup = format_lookup(Plugins.discover())
    patterns = {} if lookup(format).is_float else {"embed": EMBED_FORMAT}
    choice = FormatChoice(format, patterns)
    config = hugging_face_config(name_or_config)
    if parse_config(config, f"{name_or_config}").experts:
        name = f"{_stem(name_or_config)}-{_digest(config)}-{format}"
        drawn = Drawn(name, config, side_files(config))
        return pack_checkpoint(drawn, cached_model(f"drawn-{name}"), choice, f"drawn-{name}", lookup=lookup).path
    source = hf_directory(name_or_config)
    return convert(source, cached_model(conversion_key(source, choice)), choice, lookup=lookup).path


def tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of a checkpoint. config: of its config.json."""
    model = parse_config(config, "config.json")
    plan = layout(model)
    for tensor in plan.tensors:
        yield from {part.source: part.shape(tensor.k) for part in tensor.parts}.items()
    for vector in plan.vectors:
        yield from {part.source: part.shape() for part in vector.parts}.items()


def side_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the contents of config.json and tokenizer.json (a ``byte_tokenizer``) by file name."""
    words = byte_tokenizer(config["vocab_size"]).to_str()
    return {"config.json": json.dumps(config, indent=1).encode(), "tokenizer.json": words.encode()}


def byte_tokenizer(vocab: int) -> Tokenizer:
    """Return a tokenizer with one id per byte and unused words in the rest of the vocabulary."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())][:vocab]
    words += [f"<unused{i}>" for i in range(vocab - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _write(config: dict[str, Any], folder: Path, same: str | None) -> None:
    """Write config.json, tokenizer.json and model.safetensors, with one chunk of weights in memory at a time.

    same: the name of shapes whose weights these are; their file gets a second name.
    """
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    byte_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    if same is not None:
        (folder / WEIGHTS).hardlink_to(hf_directory(same) / WEIGHTS)
        return
    sizes = dict(tensor_shapes(config))
    rng = np.random.default_rng(0)
    nbytes = 2 * sum(math.prod(shape) for shape in sizes.values())
    bar = tqdm(total=nbytes, desc="making random weights", unit="B", unit_scale=True, disable=None)
    with bar, (folder / WEIGHTS).open("wb") as file:
        file.write(header("F16", sizes))
        for shape in sizes.values():
            rest = math.prod(shape)
            while rest:
                count = min(rest, CHUNK)
                if len(shape) == 1:
                    data = np.ones(count, np.float16)
                else:
                    data = (rng.standard_normal(count, np.float32) * np.float32(0.02)).astype(np.float16)
                file.write(data.data)
                bar.update(data.nbytes)
                rest -= count


def _stem(name_or_config: str | Path) -> str:
    name_or_config, _ = shapes.split(name_or_config)
    path = Path(name_or_config)
    if path.suffix != ".json":
        return str(name_or_config)
    return path.resolve().parent.name if path.stem == "config" else path.stem


def _digest(config: dict[str, Any]) -> str:
    return digest([VERSION, config])
