"""A checkpoint of Granite Switch, written as the base, a directory of Granite, and its adapters as PEFT has them.

A control token becomes the invocation of an activated adapter, and its row of the embedding that of the token as which
it was embedded. So the base's embedding is no longer its head, and both are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_convert.atomic import locked, replacing
from infeng_convert.huggingface import weight_files
from infeng_convert.safetensors_file import FLOAT_DTYPES, NUMPY_DTYPES, SafetensorsFile
from infeng_convert.switch.layout import APART, SWITCH, Module, Switch, read_switch
from infeng_core.api import ModelError, get_logger
from infeng_core.api.servers import side_files

BASE, ADAPTERS = "base", "adapters"
EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
PREFIX = "base_model.model."
CHUNK = 64 << 20  # bytes of a matrix that are copied at a time
NARROWER = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class Unpacked:
    """What was written."""

    path: Path
    base: Path
    adapters: Mapping[str, Path]
    nbytes: int


def unpack(directory: Path, destination: Path) -> Unpacked:
    """Write the base and the adapters of a checkpoint into the new directory ``destination``.

    It appears complete or not at all. Raises ModelError for another checkpoint, for tensors of another shape, and if
    ``destination`` exists and is not empty.
    """
    switch, destination = read_switch(directory), destination.absolute()
    stored = _Stored(directory, switch)
    wait = f"{destination}: another process writes it; waiting"
    with locked(destination, waiting=lambda: get_logger(__name__).warning(wait)):
        _require_new(destination)
        with replacing(destination, lambda: _require_new(destination)) as folder:
            (folder / BASE).mkdir()
            nbytes = _write_base(folder / BASE, stored, side_files(directory))
            for place, name in enumerate(switch.names):
                (folder / ADAPTERS / name).mkdir(parents=True)
                nbytes += _write_adapter(folder / ADAPTERS / name, stored, place)
    adapters = {name: destination / ADAPTERS / name for name in switch.names}
    return Unpacked(destination, destination / BASE, adapters, nbytes)


def _require_new(destination: Path) -> None:
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise ModelError(f"{destination}", "exists and is not empty", "choose a new directory")


class _Stored:
    """The tensors of the checkpoint: each of the layout is there, in its shape, and no other."""

    def __init__(self, directory: Path, switch: Switch) -> None:
        self.directory, self.switch = directory, switch
        self.where: dict[str, SafetensorsFile] = {}
        for path in weight_files(directory):
            file = SafetensorsFile(path)
            self.where |= dict.fromkeys(file.tensors, file)
        left = {name for name in self.where if not name.startswith(SWITCH)}
        for name, shape in self._expected():
            left.discard(self._require(name, shape))
        if left:
            self.fail(min(left), f"has no place in this layout ({len(left) - 1} others)")

    def fail(self, name: str, why: str) -> NoReturn:
        shown = name if name.isprintable() and len(name) <= 200 else repr(name[:200])
        raise ModelError(f"{self.directory}", f"tensor {shown} {why}", APART)

    def _require(self, name: str, shape: tuple[int, ...]) -> str:
        if name not in self.where:
            self.fail(name, "is missing")
        info = self.where[name].tensors[name]
        if info.shape != shape or info.dtype not in FLOAT_DTYPES:
            self.fail(name, f"is {info.dtype} {info.shape}, floats {shape} are expected")
        return name

    def _expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        switch = self.switch
        hidden = switch.modules[0].inputs
        count, rank = len(switch.names), max(switch.ranks)
        yield EMBED, (switch.vocab, hidden)
        yield NORM, (hidden,)
        if HEAD in self.where or not switch.is_tied:
            yield HEAD, (switch.vocab, hidden)
        for layer in range(switch.layers):
            for norm in NORMS:
                yield f"model.layers.{layer}.{norm}", (hidden,)
            for module in switch.modules:
                yield self.matrix(layer, module), (sum(rows for _, rows in module.modules), module.inputs)
                for _, end, _, rows in module.slices() if self.is_adapted(layer, module) else ():
                    yield self.side(layer, module, "A", end), (count, 1, rank, module.inputs)
                    yield self.side(layer, module, "B", end), (count, 1, rows, rank)

    def is_adapted(self, layer: int, module: Module) -> bool:
        """Return whether adapters are stored beside a matrix."""
        return f"model.layers.{layer}.{module.stored}.base_layer.weight" in self.where

    def matrix(self, layer: int, module: Module) -> str:
        """Return the name of a matrix of the base."""
        return f"model.layers.{layer}.{module.stored}{'.base_layer' * self.is_adapted(layer, module)}.weight"

    def side(self, layer: int, module: Module, side: str, end: str) -> str:
        """Return the name of the A's or B's of all adapters."""
        return f"model.layers.{layer}.{module.stored}.lora_{side}{end}"

    def dtype(self, name: str) -> str:
        """Return the type of a tensor's numbers."""
        return self.where[name].tensors[name].dtype

    def rows(self, name: str, first: int, count: int, row: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of some rows of a matrix of ``row`` bytes each, a part at a time."""
        step = max(1, CHUNK // row)
        for begin in range(first, first + count, step):
            yield self.where[name].piece(name, begin * row, min(step, first + count - begin) * row)

    def of_adapter(self, name: str, place: int, shape: tuple[int, int]) -> NDArray[Any]:
        """Return one adapter's A or B, padded to the largest rank, ``shape``, as its numbers are stored."""
        file, kind = self.where[name], self.dtype(name)
        nbytes = shape[0] * shape[1] * NARROWER[kind]
        found: NDArray[Any] = file.piece(name, place * nbytes, nbytes).view(NUMPY_DTYPES[kind]).reshape(shape)
        return found


def _write_base(folder: Path, stored: _Stored, side: Mapping[str, bytes]) -> int:
    switch = stored.switch
    plan: list[tuple[str, str, int, int, int]] = []  # name, stored name, first row, rows, columns (0: a vector)
    hidden = switch.modules[0].inputs
    plan += [(EMBED, EMBED, 0, switch.vocab, hidden)]
    plan += [(HEAD, HEAD if HEAD in stored.where else EMBED, 0, switch.vocab, hidden), (NORM, NORM, 0, hidden, 0)]
    for layer in range(switch.layers):
        at = f"model.layers.{layer}."
        plan += [(at + norm, at + norm, 0, hidden, 0) for norm in NORMS]
        for module in switch.modules:
            held = stored.matrix(layer, module)
            plan += [
                (f"{at}{name}.weight", held, first, rows, module.inputs) for name, _, first, rows in module.slices()
            ]
    entries = [
        (name, stored.dtype(held), (rows, columns) if columns else (rows,)) for name, held, _, rows, columns in plan
    ]
    exchanged = dict(zip(switch.control, switch.substitutes, strict=True))
    with (folder / "model.safetensors").open("wb") as file:
        _header(file, entries)
        for name, held, first, rows, columns in plan:
            row = max(columns, 1) * NARROWER[stored.dtype(held)]
            begin = file.tell()
            for part in stored.rows(held, first, rows, row):
                file.write(part.data)
            if name == EMBED:
                for token, other in exchanged.items():
                    file.seek(begin + token * row)
                    file.write(stored.where[EMBED].piece(EMBED, other * row, row).data)
                file.seek(0, 2)
        nbytes = file.tell()
    for name, data in side.items():
        if name != "config.json":
            (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps(switch.base, indent=1) + "\n")
    return nbytes


def _write_adapter(folder: Path, stored: _Stored, place: int) -> int:
    switch, found = stored.switch, dict[str, tuple[str, NDArray[Any]]]()
    rank, most, targets = switch.ranks[place], max(switch.ranks), set[str]()
    for layer in range(switch.layers):
        for module in switch.modules:
            for name, end, _, rows in module.slices() if stored.is_adapted(layer, module) else ():
                a, b = (stored.side(layer, module, side, end) for side in "AB")
                up = stored.of_adapter(b, place, (rows, most))[:, :rank]
                full = f"{PREFIX}model.layers.{layer}.{name}"
                down = stored.of_adapter(a, place, (most, module.inputs))[:rank]
                found |= {
                    f"{full}.lora_A.weight": (stored.dtype(a), down),
                    f"{full}.lora_B.weight": (stored.dtype(b), up),
                }
                if up.any():  # all are padded with zeros where an adapter changes nothing
                    targets.add(name.rpartition(".")[2])
    found = {name: one for name, one in found.items() if name.split(".")[-3] in targets}
    if not targets:
        stored.fail(switch.names[place], "is an adapter of zeros")
    with (folder / "adapter_model.safetensors").open("wb") as file:
        _header(file, [(name, kind, values.shape) for name, (kind, values) in found.items()])
        for _, values in found.values():
            file.write(np.ascontiguousarray(values).data)
        nbytes = file.tell()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,  # B has been multiplied by alpha / r
        "target_modules": sorted(targets),
        "alora_invocation_tokens": [switch.control[place]],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return nbytes


def _header(file: BinaryIO, entries: Sequence[tuple[str, str, tuple[int, ...]]]) -> None:
    """Write the header of a safetensors file whose tensors follow each other in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, kind, shape in entries:
        end = at + int(np.prod(shape, dtype=np.int64)) * NARROWER[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    file.write(len(text).to_bytes(8, "little") + text)
