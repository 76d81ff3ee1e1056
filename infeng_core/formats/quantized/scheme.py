"""``quantization_config`` of a config.json: who quantized a checkpoint, and in which ways its weights may be stored.

Which modules are quantized is not asked of it: their tensors say so, and a pattern of a stranger's file is matched
against nothing. What it says bounds what those tensors may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from infeng_core.models.typed_fields import Fields, show

KEYS = ("quantization_config", "compression_config")  # the second: of llm-compressor's first releases
DAMAGED = "fix the file or download the model again"
OTHER = "use a checkpoint by GPTQ, AWQ, compressed-tensors or AutoRound, one in FP8 or MXFP4, or the unquantized model"
BITS = (4, 8)
MAX_GROUP = 1 << 20


@dataclass(frozen=True)
class Way:
    """One way in which weights of a checkpoint are stored. A group of 0 inputs: a whole row, or the whole matrix."""

    bits: int
    group: int = 0
    symmetric: bool = False
    is_float: bool = False
    block: tuple[int, int] | None = None  # (outputs, inputs) that share a scale
    has_order: bool = False  # groups are not runs of neighbours: a tensor says which input is of which


@dataclass(frozen=True)
class Scheme:
    """What a checkpoint says of itself. Every quantized module is stored in one of its ``ways``.

    ``words`` is the order of codes in the words of ``qweight``; ``zero_offset`` is what stored zero points lack.
    ``has_blocks``: experts are blocks of 4-bit floats.
    """

    method: str  # for people: "GPTQ"
    ways: tuple[Way, ...]
    words: Literal["", "gptq", "awq"] = ""
    zero_offset: int = 0
    has_blocks: bool = False

    def sizes(self, is_float: bool) -> set[int]:
        """Return the numbers of bits that integers, or floats, may have."""
        return {way.bits for way in self.ways if way.is_float == is_float}


def read(data: Mapping[str, Any], path: Path | str) -> Scheme | None:
    """Return the scheme of a parsed config.json, None for a model in floats; raises ModelError."""
    fields = Fields(data, path, remedy=DAMAGED)
    for outer in (fields, fields.mapping("text_config")) if fields.has("text_config") else (fields,):
        for key in KEYS:
            if outer.has(key):
                return _scheme(outer.mapping(key))
    return None


def _scheme(fields: Fields) -> Scheme:
    name = fields.text("quant_method" if fields.has("quant_method") or not fields.has("method") else "method")
    method = name.lower().removeprefix("intel/").replace("_", "-")
    if method not in METHODS:
        fields.fail("quant_method", f"is {show(name)}, which this version does not read", OTHER)
    return METHODS[method](fields)


def _gptq(fields: Fields) -> Scheme:
    """GPTQModel, AutoGPTQ, optimum; the first format stores zero points less 1."""
    form = _form(fields, ("checkpoint_format", "format"), "gptq", ("gptq", "gptq_v2"))
    return Scheme("GPTQ", _ways(fields, "dynamic"), "gptq", 1 if form == "gptq" else 0)


def _awq(fields: Fields) -> Scheme:
    _form(fields, ("version", "checkpoint_format", "format"), "gemm", ("gemm",))
    return Scheme("AWQ", _only_four(fields, _ways(fields, "dynamic")), "awq")


def _auto_round(fields: Fields) -> Scheme:
    """AutoRound packs as GPTQ in either version, or as AWQ: ``packing_format``, in earlier files ``backend``."""
    _form(fields, ("data_type",), "int", ("int", "int_sym", "int_asym"))
    if fields.has("act_bits") and fields.integer("act_bits", 1, 64) < 16:
        fields.fail("act_bits", f"is {fields.data['act_bits']}: quantized activations are not read", OTHER)
    if fields.has("super_bits"):
        fields.fail("super_bits", "is set: scales that are quantized themselves are not read", OTHER)
    key = "packing_format" if fields.has("packing_format") else "backend"
    packing = re.sub("auto-?round", "auto_round", fields.text(key, "auto_round:auto_gptq").lower())
    words = set(re.split("[:_]", packing.removeprefix("auto_round")))
    ways = _ways(fields, "extra_config")
    if "awq" in words:
        return Scheme("AutoRound", _only_four(fields, ways), "awq")
    if "gptq" in words:
        return Scheme("AutoRound", ways, "gptq", 1)
    if not words <= {"", "gptqmodel", "exllamav2", "marlin", "torch", "triton", "tritonv2"}:
        fields.fail(key, f"is {show(packing)}, which this version does not read", OTHER)
    return Scheme("AutoRound", ways, "gptq", 0)


def _compressed(fields: Fields) -> Scheme:
    forms = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
    _form(fields, ("format",), "dense", forms)
    for key, inner in (("transform_config", "config_groups"), ("sparsity_config", "format")):
        if fields.has(key) and fields.mapping(key).data.get(inner) not in (None, "dense", {}, []):
            fields.fail(key, "is set: weights that are rotated or sparse are not read", OTHER)
    groups = fields.mapping("config_groups") if fields.has("config_groups") else Fields({}, fields.source)
    found = []
    for name in _few(fields, "config_groups", groups.data):
        group = groups.mapping(name)
        _form(group, ("format",), "dense", forms)
        if group.has("weights"):
            found.append(_compressed_way(group.mapping("weights")))
    return Scheme("compressed-tensors", tuple(found))


def _compressed_way(fields: Fields) -> Way:
    kind, bits = fields.text("type", "int").lower(), fields.integer("num_bits", 1, 64, 8)
    if kind not in ("int", "float") or bits not in (BITS if kind == "int" else (8,)):
        fields.fail("num_bits", f"is {bits}, of type {show(kind)}: int 4 and 8 and float 8 are read", OTHER)
    symmetric = fields.flag("symmetric", True)
    group = fields.integer("group_size", -1, MAX_GROUP, -1)
    strategy = fields.text("strategy", "group" if group > 0 else "channel").lower()
    if strategy not in ("tensor", "channel", "group", "block"):
        fields.fail("strategy", f"is {show(strategy)}, which this version does not read", OTHER)
    block = _block(fields, "block_structure") if strategy == "block" else None
    order = fields.data.get("actorder")
    if order not in (None, False, True, "group", "weight", "static", "dynamic"):
        fields.fail("actorder", f"is {show(order)}, which this version does not read", OTHER)
    return Way(bits, max(group, 0), symmetric, kind == "float", block, order in (True, "group", "dynamic"))


def _fp8(fields: Fields) -> Scheme:
    """Of transformers and vLLM: one scale for the matrix, for a row, or for a block, all of them e4m3."""
    _form(fields, ("fmt",), "e4m3", ("e4m3", "float8_e4m3fn"))
    block = _block(fields, "weight_block_size") if fields.has("weight_block_size") else None
    return Scheme("FP8", (Way(8, symmetric=True, is_float=True, block=block),))


def _mxfp4(fields: Fields) -> Scheme:
    """transformers and OpenAI; which modules it leaves in floats their tensors say."""
    return Scheme("MXFP4", (Way(4, 32, symmetric=True, is_float=True),), has_blocks=True)


METHODS: Mapping[str, Callable[[Fields], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}
"""Readers by ``quant_method``, in small letters and with hyphens."""


def _form(fields: Fields, keys: tuple[str, ...], default: str, known: tuple[str, ...]) -> str:
    """Return what the first of ``keys`` that is set says, in small letters; it must be one of ``known``."""
    key = next((key for key in keys if fields.has(key)), keys[0])
    value = fields.text(key, default)
    if value.lower() not in known:
        fields.fail(key, f"is {show(value)}, which this version does not read: {', '.join(known)} are", OTHER)
    return value.lower()


def _ways(fields: Fields, overrides: str) -> tuple[Way, ...]:
    """Return the way that all modules have and those of ``overrides``, which says it for some."""
    if fields.has("pack_dtype") and fields.text("pack_dtype") not in ("int32", "torch.int32"):
        fields.fail("pack_dtype", f"is {show(fields.data['pack_dtype'])}: words of 32 bits are read", OTHER)
    if fields.has("is_marlin_format") and fields.flag("is_marlin_format"):
        fields.fail("is_marlin_format", "is set: the order of that kernel is not read", OTHER)
    order = fields.flag("desc_act", False)
    base = Way(_bits(fields, "w_bit" if fields.has("w_bit") else "bits"), _group(fields), has_order=order)
    found = {base}
    some = fields.mapping(overrides) if fields.has(overrides) else Fields({}, fields.source)
    for name in _few(fields, overrides, some.data):
        one = some.mapping(name) if some.data[name] else Fields({}, fields.source)
        if not one.has("bits") or one.integer("bits", 1, 64) < 16:  # others are left in floats
            found.add(replace(base, bits=_bits(one, "bits", base.bits), group=_group(one, base.group)))
    return tuple(sorted(found, key=lambda way: (way != base, way.bits, way.group)))


def _bits(fields: Fields, key: str, default: int | None = None) -> int:
    number = fields.integer(key, 1, 64, default)
    if number not in BITS:
        fields.fail(key, f"is {number}: 4 and 8 are read", OTHER)
    return number


def _group(fields: Fields, default: int = 128) -> int:
    """Return the inputs of a group, 0 for a whole row."""
    key = "q_group_size" if fields.has("q_group_size") else "group_size"
    size = fields.integer(key, -1, MAX_GROUP, default)
    if fields.has(key) and size == 0:
        fields.fail(key, "is 0: it must be a number of inputs, or -1 for a whole row")
    return max(size, 0)


def _only_four(fields: Fields, ways: tuple[Way, ...]) -> tuple[Way, ...]:
    if any(way.bits != 4 for way in ways):
        fields.fail("bits", "is not 4, the only number of bits that AWQ packs", DAMAGED)
    return ways


def _block(fields: Fields, key: str) -> tuple[int, int]:
    value = fields.data.get(key)
    sizes = value if isinstance(value, list) else []
    if len(sizes) != 2 or not all(type(size) is int and 0 < size <= MAX_GROUP for size in sizes):
        fields.fail(key, f"is {show(value)}, it must be two sizes")
    return sizes[0], sizes[1]


def _few(fields: Fields, key: str, found: Mapping[Any, Any]) -> list[str]:
    if len(found) > 1 << 16:
        fields.fail(key, f"has {len(found)} entries, more than any model has modules")
    return [str(name) for name in found]
