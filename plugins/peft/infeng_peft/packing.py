"""Packing of an adapter in PEFT's form into the bytes that kernels read. The rules are in docs/numerics.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import AdapterError, NativeError
from infeng_core.api.adapters import (
    EMBED,
    HEAD,
    AdapterDtype,
    AdapterImage,
    AdapterSpec,
    PartSpec,
    Pieces,
    TargetModule,
    adapter_digest,
    base_tensor,
    folded_inputs,
    rotation_of,
    stacked_panels,
    stored_rank,
    target_modules,
)
from infeng_core.api.formats import (
    PANEL_ROWS,
    LoadedModel,
    PackedTensor,
    Part,
    QuantFormat,
    aligned_bytes,
    builtin_format,
    rotated,
    widened,
)
from infeng_peft.floats import to_bf16
from infeng_peft.norms import row_scales
from infeng_peft.tails import TailFormat, decomposed, quantize_tails
from infeng_peft.trained_tokens import as_delta
from infeng_peft.weights import AdapterWeights, Delta, Floats

SMALLEST = np.float32(2.0**-100)  # a row with a smaller largest magnitude counts as zero
Arrays = Mapping[str, NDArray[Any]]
FORMATS: Mapping[AdapterDtype, QuantFormat | TailFormat] = {
    "f32": builtin_format("f32"),
    "bf16": builtin_format("bf16"),
    "int8": builtin_format("int8-row"),
    "int8t4": TailFormat(),
}
"""What packs an A."""


def pack(adapter: AdapterWeights, model: LoadedModel, dtype: AdapterDtype, scale: float = 1.0) -> AdapterImage:
    """Pack an adapter over ``model``; ``scale`` multiplies alpha / r.

    Raises AdapterError naming the tensor for a value that is too large for ``dtype``.
    """
    return _Packer(adapter, model, dtype, scale).image()


class _Packer:
    def __init__(self, adapter: AdapterWeights, model: LoadedModel, dtype: AdapterDtype, scale: float) -> None:
        self.adapter = adapter
        self.model = model
        self.dtype = dtype
        self.scale = scale
        self.known = target_modules(model.config)
        self.saved = self._saved_tensors()
        self.deltas = {**adapter.deltas, **self._trained()}
        self.products = {module: self._product(delta) for module, delta in self.deltas.items()}

    def image(self) -> AdapterImage:
        deltas = self.deltas
        by_tensor: dict[str, list[TargetModule]] = {name: [] for name in self.known.specs if name != EMBED}
        for site in self.known.matrices.values():
            if site.kind != "embedding":
                by_tensor[site.tensor].append(site)
        specs = {name: tuple(self._part_spec(site.module) for site in found) for name, found in by_tensor.items()}
        embedding = next((delta for delta in deltas.values() if delta.site.kind == "embedding"), None)
        vectors = {self.known.norms[module][0]: module for module in self.adapter.saved if module in self.known.norms}
        filled = {name: parts for name, parts in specs.items() if not all(part.is_empty for part in parts)}
        spec = AdapterSpec(
            dtype=self.dtype,
            tensors=filled,
            embedding=None if embedding is None else self._part_spec(embedding.site.module),
            saved_tensors={name: base_tensor(self.model, name).format for name in self.saved},
            saved_vectors=tuple(vectors),
            rotated={name: block for name in filled if (block := rotation_of(self.model, name, self.dtype))},
            invocation=self.adapter.invocation,
            trained_tokens=tuple(sorted({token for one in self.adapter.trained.values() for token in one.tokens})),
        )
        pieces = Pieces(spec, self.model)
        data = aligned_bytes(pieces.total)
        data[:] = 0
        arrays = pieces.views(data)
        for name in spec.tensors:
            self._fill_tensor(name, by_tensor[name], arrays[name])
        if embedding is not None:
            arrays["embedding"]["a"][:] = self.products[embedding.site.module][0].T
            rows = Part("", embedding.site.k)
            self._fill_part(embedding.site, rows, arrays["embedding"], "")
        for name, panels in self.saved.items():
            arrays[f"saved.{name}"]["panels"][:] = panels
        for name, module in vectors.items():
            arrays[f"saved.{name}"]["vector"][:] = self.adapter.saved[module]
        return AdapterImage(spec, pieces, data, adapter_digest(data), self.adapter.base_name)

    def _product(self, delta: Delta) -> tuple[Floats, Floats]:
        """Return A (rank, k) and B (rows, rank) as they are stored, before they are rounded."""
        if self.dtype != "int8t4":
            return delta.a, delta.b
        if not (np.isfinite(delta.a).all() and np.isfinite(delta.b).all()):
            raise self._does_not_fit(f"{delta.site.module}", "a value is NaN or infinite")
        return decomposed(delta.a, delta.b)

    def _part_spec(self, module: str) -> PartSpec:
        delta = self.deltas.get(module)
        changed = module in self.adapter.biases
        if delta is None:
            return PartSpec(bias=changed)
        scaling = delta.scaling * (self.scale if delta.is_scaled else 1.0)
        rank = stored_rank(self.dtype, delta.a.shape[0])
        return PartSpec(rank, scaling, delta.magnitude is not None, changed or delta.bias is not None)

    def _fill_tensor(self, name: str, found: list[TargetModule], arrays: Arrays) -> None:
        products = [self.products[site.module] for site in found if site.module in self.products]
        if products:
            rows = np.concatenate([a for a, _ in products])
            if block := rotation_of(self.model, name, self.dtype):
                rows = rotated(rows, block)
            try:
                pack_stacked(FORMATS[self.dtype], rows, arrays["a"])
            except NativeError as error:
                raise self._does_not_fit(f"A of {name}", str(error)) from None
        for index, site in enumerate(found):
            self._fill_part(site, site.part, arrays, f"{index}.")

    def _fill_part(self, site: TargetModule, place: Part, arrays: Arrays, prefix: str) -> None:
        delta = self.deltas.get(site.module)
        if delta is not None:
            self._fill_b(delta, arrays[f"{prefix}b"], arrays.get(f"{prefix}b_scale"))
            if delta.magnitude is not None:
                base = self.saved_base(site)
                scales = arrays[f"{prefix}row_scale"]
                scales[:] = 1.0
                scales[: place.rows] = row_scales(delta, delta.scaling * self.scale, base)
        if f"{prefix}bias" in arrays:
            arrays[f"{prefix}bias"][: place.rows] = self._bias(site, delta)

    def _trained(self) -> dict[str, Delta]:
        """Return the changes by which single rows of embedding and head become the trained ones."""
        if self.adapter.trained and self.dtype == "int8t4":  # a decomposition would mix the tokens
            raise self._does_not_fit("trainable_token_indices", "its rows are not stored in 4 bits")
        sites = ((self.known.matrices[module], rows) for module, rows in self.adapter.trained.items())
        return {site.module: as_delta(site, rows, self.saved_base(site), self.dtype) for site, rows in sites}

    def _bias(self, site: TargetModule, delta: Delta | None) -> Floats:
        """Return the addition to the outputs: the new bias less the base's, and the product's own bias."""
        total = np.zeros(site.part.rows, np.float32)
        if site.module in self.adapter.biases:
            total = self.adapter.biases[site.module] - self.model.matrix(f"{site.module}.bias")
        if delta is not None and delta.bias is not None:
            total = total + delta.bias * np.float32(delta.scaling * self.scale)
        return total

    def _fill_b(self, delta: Delta, out: NDArray[Any], scales: NDArray[Any] | None) -> None:
        a, b = self.products[delta.site.module]
        values = in_panels(b, out.shape[0])
        if self.dtype == "int8t4":
            assert scales is not None
            scales.reshape(-1, PANEL_ROWS)[:] = quantize_tails(values, a, out)
            return
        if self.dtype == "int8":
            assert scales is not None
            scales.reshape(-1, PANEL_ROWS)[:] = quantize_panels(values, out)
            return
        out[:] = to_bf16(values) if self.dtype == "bf16" else values
        if self.dtype == "bf16" and ((out & 0x7F80) == 0x7F80).any():
            raise self._does_not_fit(f"B of {delta.site.module}", "a value is too large")

    def _does_not_fit(self, what: str, why: str) -> AdapterError:
        remedy = "store adapters in another format (adapters.dtype), or use another copy"
        return AdapterError(f"{self.adapter.source}", f"{what} does not fit {self.dtype} ({why})", remedy)

    def saved_base(self, site: TargetModule) -> PackedTensor:
        """Return the packed weight of a module: the adapter's own if it saves one, else the base's."""
        base = base_tensor(self.model, site.tensor)
        return base.holding(self.saved[site.tensor], site.tensor) if site.tensor in self.saved else base

    def _saved_tensors(self) -> dict[str, NDArray[np.uint8]]:
        """Return the panels that replace embeddings and head, in the base's formats.

        PEFT stores the embeddings with an embedding's LoRA, usually unchanged: panels equal to the base's are
        dropped.
        """
        found: dict[str, NDArray[np.uint8]] = {}
        for module, site in self.known.matrices.items():
            if module in self.adapter.saved:
                found[site.tensor] = self._panels(site, self.adapter.saved[module])
        for module, values in self.adapter.base_weights.items():
            site = self.known.matrices[module]
            base, panels = base_tensor(self.model, site.tensor), self._panels(site, values)
            if not np.array_equal(np.frombuffer(base.buffer, np.uint8, base.nbytes, base.offset), panels):
                # If the two are tied, PEFT loads this into the one weight that both use.
                for name in (EMBED, HEAD) if self.model.config.tie_embeddings else (site.tensor,):
                    found.setdefault(name, panels)
        return dict(sorted(found.items()))

    def _panels(self, site: TargetModule, values: Floats) -> NDArray[np.uint8]:
        base = base_tensor(self.model, site.tensor)
        out = aligned_bytes(base.nbytes)
        try:
            base.quant.pack(values, out, threads=2)
        except NativeError as error:
            raise self._does_not_fit(f"{site.module}.weight in {base.format}", str(error)) from None
        return out


def pack_stacked(format: QuantFormat | TailFormat, rows: Floats, out: NDArray[np.uint8]) -> None:
    """Pack (rank, k) into ``stacked_bytes`` bytes; raises the errors of ``format.pack``.

    The two halves of a folded row are rounded as separate rows, each with its scale.
    """
    k = rows.shape[1]
    whole, is_folded = stacked_panels(len(rows))
    end = whole * format.panel_bytes(k)
    if whole:
        format.pack(rows[: whole * PANEL_ROWS], out[:end])
    if is_folded:
        last, half = rows[whole * PANEL_ROWS :], folded_inputs(k)
        lanes = np.zeros((PANEL_ROWS, half), np.float32)
        for first, part in ((0, last[:, :half]), (PANEL_ROWS // 2, last[:, half:])):
            lanes[first : first + len(last), : part.shape[1]] = part
        format.pack(lanes, out[end:])


def in_panels(values: Floats, panels: int) -> Floats:
    """Return (rows, rank) as (panels, rank, 16), zero on padding."""
    rows, rank = values.shape
    if rows != panels * PANEL_ROWS:
        values = np.concatenate([values, np.zeros((panels * PANEL_ROWS - rows, rank), np.float32)])
    return np.ascontiguousarray(values.reshape(panels, PANEL_ROWS, rank).transpose(0, 2, 1))


def quantize_panels(values: Floats, out: NDArray[np.int8]) -> NDArray[np.uint16]:
    """Quantize (panels, rank, 16) into ``out``; return the scales in bf16, (panels, 16).

    A scale is rounded before q is chosen under it. That changes amax / scale by at most 127 / 256, so |q| stays
    within 127.
    """
    amax = np.abs(values).max(axis=1)
    usable = amax >= SMALLEST
    scales = to_bf16(np.where(usable, amax / np.float32(127.0), np.float32(0.0)))
    inverse = np.float32(1.0) / np.where(usable, widened(scales), np.float32(np.inf))
    scaled = values * inverse[:, None, :]
    out[:] = np.rint(scaled, out=scaled)
    return scales
