"""Random packed adapters of any kind, and a NumPy model that computes the same bytes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernels import model as law
from kernels.adapters import bf16_bits, bf16_values, stacked, sums, unstacked
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.batch import AdapterHandle, AdapterRows, Batch
from infeng_core.engine import Engine
from infeng_core.formats.adapters.packed import AdapterDtype, LoraEmbedding, LoraPart, LoraTensor, PackedAdapter
from infeng_core.formats.packing import packer
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.models import rope  # the tables alone are the engine's
from infeng_core.models.weights import Part, TensorSpec, layout

F32 = NDArray[np.float32]
FORMATS = {"f32": "f32", "bf16": "bf16", "int8": "int8-row"}
BLOCK = 16

# ----------------------------------------------------------------------------------------------- random adapters ---


@dataclass(frozen=True)
class Kind:
    """The contents of an adapter. Projections take ``ranks`` in turn; 0: only a row scale or bias."""

    ranks: Sequence[int] = (8,)
    targets: Sequence[str] = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")  # ends of packed names
    dora: bool = False
    bias: bool = False
    embedding: int = 0  # its rank
    saved: Collection[str] = ()  # packed tensors and vectors by our names
    strength: float = 0.5


def random_adapter(
    model: LoadedModel, dtype: AdapterDtype = "f32", kind: Kind | None = None, seed: int = 0
) -> PackedAdapter:
    """Return an adapter for ``model`` whose effect is about ``strength`` times the base's own."""
    kind = kind or Kind()
    random = np.random.default_rng(seed)
    specs = {spec.name: spec for spec in layout(model.config).tensors}
    wanted = {name: spec for name, spec in specs.items() if name != "embed"}
    wanted.setdefault("lm_head", specs["embed"])
    ranks = _cycle(kind.ranks)
    tensors = {
        name: _tensor(spec, dtype, kind, ranks, random)
        for name, spec in wanted.items()
        if name.endswith(tuple(kind.targets))
    }
    embedding = _embedding(specs["embed"], dtype, kind, random) if kind.embedding else None
    saved_tensors = {n: _saved(model, n, random) for n in kind.saved if n in ("embed", "lm_head")}
    saved_vectors = {
        n: (model.vectors[n] * random.uniform(0.5, 1.5, model.vectors[n].size)).astype(np.float32)
        for n in kind.saved
        if n in model.vectors
    }
    id_ = hashlib.sha256(f"{model.id} {dtype} {kind} {seed}".encode()).hexdigest()
    return PackedAdapter(id_, model.id, dtype, Path(f"random-{seed}"), tensors, embedding, saved_tensors, saved_vectors)


def _cycle(ranks: Sequence[int]):
    while True:
        yield from ranks


def _normal(random: np.random.Generator, *shape: int) -> F32:
    return random.standard_normal(shape, dtype=np.float32)


def _tensor(spec: TensorSpec, dtype: AdapterDtype, kind: Kind, ranks, random: np.random.Generator) -> LoraTensor:
    places = [(part, next(ranks)) for part in spec.parts]
    rank = sum(each for _, each in places)
    scaling = np.zeros(-(-rank // 16) * 16, np.float32)
    scaling[:rank] = random.uniform(0.5, 2.0, rank)
    a = _normal(random, rank, spec.k) / np.float32(np.sqrt(spec.k))
    parts, column = [], 0
    for part, own in places:
        parts.append(_part(part, own, column, dtype, kind, random))
        column += own
    return LoraTensor(rank, stacked(FORMATS[dtype], a), scaling, tuple(parts))


def _part(part: Part, rank: int, column: int, dtype: AdapterDtype, kind: Kind, random: np.random.Generator) -> LoraPart:
    outputs = part.panels * 16
    b = np.zeros((outputs, rank), np.float32)
    b[: part.rows] = _normal(random, part.rows, rank) * np.float32(kind.strength / np.sqrt(max(rank, 1)))
    stored, b_scale = store(b, dtype)
    row_scale = bias = None
    if kind.dora:
        row_scale = np.ones(outputs, np.float32)
        row_scale[: part.rows] = random.uniform(0.7, 1.3, part.rows)
    if kind.bias:
        bias = np.zeros(outputs, np.float32)
        bias[: part.rows] = _normal(random, part.rows) * np.float32(kind.strength)
    panels = np.ascontiguousarray(stored.reshape(part.panels, 16, rank).transpose(0, 2, 1))
    return LoraPart(rank, column, part.first_panel, part.panel_step, part.panels, panels, b_scale, row_scale, bias)


def store(b: F32, dtype: AdapterDtype) -> tuple[NDArray[np.generic], NDArray[np.uint16] | None]:
    """Return B (outputs, rank) as it is stored, and the scales of int8."""
    if dtype == "bf16":
        return bf16_bits(b), None
    if dtype == "int8":
        if b.shape[1] == 0:
            return b.astype(np.int8), np.zeros(len(b), np.uint16)
        q, scale, _ = law.quantize(b)
        return q, bf16_bits(scale)
    return b, None


def _embedding(spec: TensorSpec, dtype: AdapterDtype, kind: Kind, random: np.random.Generator) -> LoraEmbedding:
    hidden = Part("", spec.k)
    part = _part(hidden, kind.embedding, 0, dtype, Kind(strength=kind.strength), random)
    return LoraEmbedding(kind.embedding, _normal(random, spec.n, kind.embedding), 0.75, part)


def _saved(model: LoadedModel, name: str, random: np.random.Generator) -> PackedTensor:
    own = model.tensors.get(name, model.tensors["embed"])  # a tied head is saved as a tensor of its own
    rows = (own.dequantize() + _normal(random, own.n, own.k) * np.float32(0.3)).astype(np.float32)
    arena = _native.Arena(own.nbytes, huge_pages=False)
    packer().pack(own.format, rows, arena)
    return PackedTensor(name, own.format, own.n, own.k, own.panels, own.panel_bytes, arena, 0, own.quant)


# -------------------------------------------------------------------------------------------- the same in NumPy ---


def u_of(x: F32, tensor: LoraTensor, dtype: AdapterDtype, weight: float) -> F32:
    """Return u (rows, stacked rank) as docs/numerics.md has it."""
    pieces = unstacked(FORMATS[dtype], tensor.a, tensor.rank, x.shape[1])
    return law.scaled(sums(x, pieces, dtype), tensor.scaling[: tensor.rank], weight)


def add_part(cur: F32, u: F32, part: LoraPart) -> None:
    """Add one projection's product to its columns of ``cur`` (rows, panels * 16)."""
    panels = part.first_panel + part.panel_step * np.arange(part.panels)
    columns = (panels[:, None] * 16 + np.arange(16)).reshape(-1)
    b = part.b.transpose(0, 2, 1).reshape(part.panels * 16, part.rank)
    if b.dtype == np.uint16:
        b = bf16_values(b)
    own = u[:, part.u_column : part.u_column + part.rank]
    scale = bf16_values(part.b_scale) if part.b.dtype == np.int8 else None
    cur[:, columns] = law.lora(cur[:, columns], own, b, scale, part.row_scale, part.bias)


class Formula:
    """A tiny Llama with f32 weights and an f32 cache, and adapters on it."""

    def __init__(self, model: LoadedModel, adapters: Sequence[tuple[PackedAdapter, float]] = ()) -> None:
        """``adapters`` combine, with their weights, in this order."""
        self.model, self.adapters = model, adapters

    def logits(self, tokens: Sequence[int]) -> F32:
        """Return the logits (tokens, vocab) of one sequence."""
        c = self.model.config
        cos, sin = rope.tables(c.rope, c.head_dim, len(tokens))
        x = self._embed(np.asarray(tokens))
        q_width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        for layer in range(c.layers):
            name = f"layers.{layer}"
            qkv = self._linear(f"{name}.qkv_proj", self._norm(f"{name}.attn_norm", x))
            q = law.rope(qkv[:, :q_width].reshape(len(x), c.heads, -1), cos, sin)
            k = law.rope(qkv[:, q_width : q_width + kv_width].reshape(len(x), c.kv_heads, -1), cos, sin)
            v = qkv[:, q_width + kv_width :].reshape(len(x), c.kv_heads, -1)
            attended = np.empty_like(q)
            for head in range(c.heads):
                kv_head = head * c.kv_heads // c.heads
                cache = law.Cache(k[:, kv_head], v[:, kv_head], "f32")
                for position in range(len(x)):
                    scale = np.float32(1 / np.sqrt(c.head_dim))
                    attended[position, head] = law.attention(q[position, head], cache, position, scale)
            x = self._linear(f"{name}.o_proj", attended.reshape(len(x), -1)) + x
            both = self._linear(f"{name}.gate_up_proj", self._norm(f"{name}.mlp_norm", x))
            both = both.reshape(len(x), -1, 2, 16)
            gated = (law.silu(both[:, :, 0]) * both[:, :, 1]).reshape(len(x), -1)
            x = self._linear(f"{name}.down_proj", gated[:, : c.intermediate]) + x
        return self._linear("lm_head", self._norm("norm", x))[:, : c.vocab]

    def _embed(self, tokens: NDArray[np.int64]) -> F32:
        saved = self._saved("saved_tensors", "embed")
        rows = (saved or self.model.tensors["embed"]).dequantize()[tokens]
        for adapter, weight in self.adapters:
            if adapter.embedding is not None:
                u = (adapter.embedding.a[tokens] * np.float32(adapter.embedding.scaling)) * np.float32(weight)
                add_part(rows, u, adapter.embedding.part)
        return rows

    def _norm(self, name: str, x: F32) -> F32:
        saved = self._saved("saved_vectors", name)
        return law.rmsnorm(x, self.model.vectors[name] if saved is None else saved, self.model.config.rms_eps)

    def _linear(self, name: str, x: F32) -> F32:
        weight = self._saved("saved_tensors", name) or self.model.tensors.get(name, self.model.tensors["embed"])
        cur = law.linear_float(x, weight.quant.unpack(weight.buffer, weight.offset, weight.panels, weight.k))
        for adapter, share in self.adapters:
            tensor = adapter.tensors.get(name)
            if tensor is not None:
                u = u_of(x, tensor, adapter.dtype, share)
                for part in tensor.parts:
                    add_part(cur, u, part)
        bias = self.model.vectors.get(f"{name}.bias")
        return cur if bias is None else cur + bias

    def _saved(self, kind: str, name: str):
        return next((getattr(a, kind)[name] for a, _ in self.adapters if name in getattr(a, kind)), None)


# ------------------------------------------------------------------------------------------- running executables ---

Adapted = Sequence[tuple[AdapterHandle, float]]


@dataclass
class Row:
    """A sequence that ``run`` computes: all of its tokens' logits are wanted."""

    tokens: Sequence[int]
    adapters: Adapted = ()


def run(engine: Engine, rows: Sequence[Row], *, chunk: int = 1 << 20, sampled: bool = True) -> list[F32]:
    """Compute sequences side by side on ``engine.executable``, up to ``chunk`` tokens of each in a step.

    Returns the logits of every token of each sequence, (tokens, vocab); ``sampled=False``: of the last one.
    """
    found: list[list[F32]] = [[] for _ in rows]
    first_block = np.cumsum([0, *(-(-len(row.tokens) // BLOCK) for row in rows)])
    for begin in range(0, max(len(row.tokens) for row in rows), chunk):
        tokens, positions, segments, tables, samples, adapters, owners = [], [], [], [], [], [], []
        for index, row in enumerate(rows):
            part = list(row.tokens[begin : begin + chunk])
            if not part:
                continue
            at, end = len(tokens), len(tokens) + len(part)
            segments.append([at, end, begin, len(tables)])
            tokens += part
            positions += range(begin, begin + len(part))
            tables += range(first_block[index], first_block[index + 1])
            adapters += [AdapterRows(at, end, handle, weight) for handle, weight in row.adapters]
            last = begin + len(part) == len(row.tokens)
            wanted = range(at, end) if sampled else range(end - 1, end) if last else ()
            samples += wanted
            owners += [index] * len(wanted)
        arrays = [np.array(values, np.int32) for values in (tokens, positions, segments, tables, samples)]
        logits = engine.executable.run(Batch([], *arrays, adapters))
        for owner, line in zip(owners, logits, strict=True):
            found[owner].append(line.copy())
    return [np.stack(lines) for lines in found]
