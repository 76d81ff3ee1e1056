"""Export of a model to a GGUF for llama.cpp: names, order of rotary rows, vocabulary and template."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import Export, ExportPlan, ModelSource, Quantized, locked
from numpy.typing import NDArray
from tqdm import tqdm

from infeng_core.api import ModelError, ResourceError, UsageError, available_bytes, unknown_key_remedy
from infeng_core.api.formats import (
    BUILTIN,
    ModelConfig,
    Part,
    RopeConfig,
    gigabytes,
    inverse_frequencies,
    require_memory,
    widened,
)
from infeng_gguf.architectures import BY_FAMILY, Architecture
from infeng_gguf.file import GgufFile
from infeng_gguf.metadata import FACTORS
from infeng_gguf.types import BY_NAME
from infeng_gguf.vocabulary import tokenizer_metadata
from infeng_gguf.writer import FILE_TYPES, FORMATS, KEPT, NewTensor, type_for, write_gguf


def export_gguf(
    source: ModelSource, destination: Path, format: str, *, force: bool = False, progress: bool = True
) -> Export:
    """Write the model ``source`` as the GGUF file ``destination``.

    format: f32, f16, bf16, q8_0, or q4_0, with Q8_0 for embedding and head; vectors are F32. The file is written
    atomically; an existing one is replaced only with ``force``, and only if it is a GGUF. About one tensor is in memory
    at a time. Raises ModelError for a model that GGUF cannot represent, UsageError, ResourceError.
    """
    start = time.monotonic()
    exporter = _exporter(source, format)
    destination = destination.absolute()
    with locked(destination):
        _require_place(destination, force, sum(tensor.nbytes for tensor in exporter.tensors))
        partial = destination.with_name(f".{destination.name}.infeng-partial")
        partial.unlink(missing_ok=True)
        total = sum(tensor.nbytes for tensor in exporter.tensors)
        with tqdm(total=total, desc="exporting", unit="B", unit_scale=True, disable=None if progress else True) as bar:

            def values(tensor: NewTensor) -> NDArray[np.float32] | Quantized:
                bar.update(tensor.nbytes)
                return exporter.values(tensor)

            try:
                write_gguf(partial, exporter.metadata(), exporter.tensors, values)
                partial.rename(destination)
            except OSError as error:
                remedy = "free some space, check the permissions, or choose another place"
                raise ResourceError(f"{destination}", f"cannot be written ({error.strerror})", remedy) from None
            finally:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
    types = {tensor.name: tensor.type.name for tensor in exporter.tensors}
    return Export(destination, destination.stat().st_size, time.monotonic() - start, types)


def planned(source: ModelSource, format: str) -> ExportPlan:
    """Return the tensor types and bytes of ``export_gguf``; raises the same errors."""
    exporter = _exporter(source, format)
    types = {one.name: one.type.name for one in exporter.tensors}
    return ExportPlan(types, sum(one.nbytes for one in exporter.tensors))


def interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder the rows of ``heads`` heads from two halves of rotary values to adjacent pairs."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _exporter(source: ModelSource, format: str) -> _Exporter:
    if format not in FORMATS:
        raise UsageError(f"format {format}", "is not written to GGUF", unknown_key_remedy(format, FORMATS))
    return _Exporter(source, format)


def _require_place(destination: Path, force: bool, nbytes: int) -> None:
    if destination.is_dir() or destination.is_symlink() or destination.exists():
        if not force:
            remedy = "give --force to replace it, or choose another destination"
            raise ModelError(f"{destination}", "exists already", remedy)
        GgufFile(destination)  # raises for another kind of file
    free = shutil.disk_usage(destination.parent).free
    if nbytes > free:
        why = f"the export needs {gigabytes(nbytes)}, the disk has {gigabytes(free)} free"
        raise ResourceError(f"{destination}", why, "free some space or choose another place")


class _Exporter:
    """The tensors and metadata of an export; values are read when they are written."""

    def __init__(self, checkpoint: ModelSource, format: str) -> None:
        self.checkpoint, self.format = checkpoint, format
        self.config: ModelConfig = checkpoint.config
        if self.config.family not in BY_FAMILY or not BY_FAMILY[self.config.family].is_written:
            known = ", ".join(family for family, one in BY_FAMILY.items() if one.is_written)
            raise ModelError(f"{checkpoint.directory}", f"a {self.config.family} is not written; {known} are", "")
        if any(getattr(self.config, "windows", ())):
            raise ModelError(f"{checkpoint.directory}", "attention in windows is not written", "")
        self.architecture: Architecture = BY_FAMILY[self.config.family]
        self.rotated = int(self.config.head_dim * getattr(self.config.rope, "partial", 1.0))
        self.parts: dict[str, Part] = {}
        self.tensors: list[NewTensor] = []
        self.factors = self._factors()
        if self.factors is not None:
            self.tensors.append(NewTensor(FACTORS, BY_NAME["F32"], self.factors.shape))
        for spec in checkpoint.layout.tensors:
            ends = format == "q4_0" and spec.name in ("embed", "lm_head")
            for part in spec.parts:
                self._add(part, (part.rows, spec.k), "q8_0" if ends else format)
        for vector in checkpoint.layout.vectors:
            for part in vector.parts:
                self._add(part, (part.rows,), "f32")
        require_memory(2 * checkpoint.largest, f"{checkpoint.directory}", available_bytes())

    def _add(self, part: Part, shape: tuple[int, ...], format: str) -> None:
        name = self.architecture.ours(part.source)
        self.parts[name] = part
        self.tensors.append(NewTensor(name, type_for(format, shape[-1]), shape))

    def values(self, tensor: NewTensor) -> NDArray[np.float32] | Quantized:
        """Return one tensor in GGUF's order of rows; raises ModelError if it is not finite.

        Codes and scales of the source that the tensor's type stores exactly are not rounded again.
        """
        if tensor.name == FACTORS:
            assert self.factors is not None
            return self.factors
        part = self.parts[tensor.name]
        if tensor.type.name in KEPT and (kept := self.checkpoint.kept(part, BUILTIN[KEPT[tensor.type.name]])):
            return Quantized(self._interleaved(part, kept.codes), self._interleaved(part, kept.scales))
        values = widened(self.checkpoint.array(part))
        most = np.finfo(np.float16).max if tensor.type.name == "F16" else np.inf
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) > most:
            why = f"holds a value that {tensor.type.name} cannot"
            raise ModelError(self.checkpoint.place(part), why, "use another copy, or --format f32")
        values = self._interleaved(part, values)
        return np.ascontiguousarray(
            values + np.float32(self.architecture.norm_offset) if self._is_norm(part) else values
        )

    def _interleaved(self, part: Part, rows: NDArray[Any]) -> NDArray[Any]:
        """Reorder rows from transformers' order to adjacent rotary pairs, if the architecture has them."""
        heads = self.architecture.rotary_heads(part.source, self.config.heads, self.config.kv_heads)
        return interleaved(rows, heads) if heads else rows

    def _is_norm(self, part: Part) -> bool:
        return bool(self.architecture.norm_offset) and part.source.endswith("norm.weight")

    def metadata(self) -> dict[str, Any]:
        """Return the metadata."""
        config, name = self.config, self.architecture.name
        sizes: dict[str, Any] = {
            "context_length": config.max_positions,
            "embedding_length": config.hidden,
            "block_count": config.layers,
            "feed_forward_length": config.intermediate,
            "attention.head_count": config.heads,
            "attention.head_count_kv": config.kv_heads,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "attention.layer_norm_rms_epsilon": config.rms_eps,
            "rope.freq_base": config.rope.theta,
            "rope.dimension_count": self.rotated,
            "vocab_size": config.vocab,
        }
        if config.rope.kind == "linear":
            sizes |= {"rope.scaling.type": "linear", "rope.scaling.factor": config.rope.factor}
        general = {
            "general.architecture": name,
            "general.type": "model",
            "general.name": self.checkpoint.directory.resolve().stem,
            "general.file_type": FILE_TYPES[self.format],
            "general.quantization_version": 2,
        }
        vocabulary = tokenizer_metadata(
            self.checkpoint.side_files(), config.vocab, config.eos_ids, self.checkpoint.directory
        )
        return general | {f"{name}.{key}": value for key, value in sizes.items()} | vocabulary

    def _factors(self) -> NDArray[np.float32] | None:
        """Return the divisors of the rotary frequencies of Llama 3's scaling, (head_dim / 2,); None without it."""
        rope = self.config.rope
        if rope.kind in ("default", "linear"):
            return None
        if rope.kind != "llama3" or self.architecture.rope_factors != "llama3":
            raise ModelError(f"{self.checkpoint.directory}", f"rope scaling {rope.kind} is not written", "")
        plain = inverse_frequencies(RopeConfig(rope.theta), self.rotated).astype(np.float64)
        found = plain / inverse_frequencies(rope, self.rotated).astype(np.float64)
        assert math.isfinite(found.max())
        return found.astype(np.float32)
