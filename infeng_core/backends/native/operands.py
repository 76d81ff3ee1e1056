"""The operands of a program's ops: weights, and buffers of values, each made at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core import _native
from infeng_core.backends.native.forms import PLAIN, Rounding
from infeng_core.formats.quant import ROW
from infeng_core.models.ops import Bias, GatedMul, Graph, Residual, Scale, SiluMul, Softcap, Step

if TYPE_CHECKING:
    from infeng_core.formats.tensors import LoadedModel

Epilogues = list[tuple[str, _native.Epilogue]]
"""Steps that follow an op, each with its name."""


class Operands:
    """The operands of one program."""

    def __init__(self, program: _native.Program, model: LoadedModel, graph: Graph) -> None:
        """Allocate buffers in ``program`` for the values of ``graph``, over the tensors of ``model``."""
        self.program = program
        self.model = model
        self.graph = graph
        self._weights: dict[str, _native.Weight] = {}
        self._buffers: dict[str, int] = {}
        self._activations: dict[tuple[str, Rounding], int] = {}

    def weight(self, name: str) -> _native.Weight:
        """Return a tensor of the model; raises KeyError for an unknown name."""
        if name not in self._weights:
            self._weights[name] = self.model.tensors[name].native()
        return self._weights[name]

    def buffer(self, name: str) -> int:
        """Return the buffer of a value's float32 rows; raises KeyError for a name that the graph lacks."""
        if name not in self._buffers:
            value = self.graph.values[name]
            self._buffers[name] = self.program.buffer(value.columns, samples=value.sampled, copies=value.copies)
        return self._buffers[name]

    def optional(self, name: str) -> int | None:
        """Return the buffer of a value, None for an empty name."""
        return self.buffer(name) if name else None

    def rows(self, name: str, kind: Rounding | None) -> int:
        """Return the buffer of a value's rows: rounded to int8 as ``kind`` says, or with None in float32."""
        if kind is None:
            return self.buffer(name)
        if (name, kind) not in self._activations:
            value, (group, rotated) = self.graph.values[name], kind
            more: dict[str, Any] = {"samples": value.sampled, "copies": value.copies}
            made = self.program.activation(value.columns, group=group, rotated=rotated, **more)
            self._activations[name, kind] = made
        return self._activations[name, kind]

    def scratch(self, columns: int, sampled: bool) -> int:
        """Return a buffer for rows between an op and the steps that it could not fuse."""
        name = f"scratch {columns} {sampled}"
        if name not in self._buffers:
            self._buffers[name] = self.program.buffer(columns, samples=sampled)
        return self._buffers[name]

    def step(self, step: Step) -> tuple[str, _native.Epilogue]:
        """Return the name of a graph's step, and the epilogue that programs take for it."""
        match step:
            case Bias(vector):
                return "bias", _native.Epilogue.bias(self.model.vectors[vector])
            case Residual(value):
                return "residual", _native.Epilogue.residual(self.buffer(value))
            case SiluMul():
                return "silu_mul", _native.Epilogue.silu_mul()
            case GatedMul(function, slope, limit):
                return f"{function}_mul", _native.Epilogue.gated_mul(function, slope, limit)
            case Scale(factor):
                return "scale", _native.Epilogue.scale(factor)
            case Softcap(cap):
                return "softcap", _native.Epilogue.softcap(cap)

    def quantized(self, out: str, roundings: list[Rounding]) -> Epilogues:
        """Return the steps that round a value, one for each way."""
        return [(name_of(kind), _native.Epilogue.quantize(self.rows(out, kind))) for kind in roundings]


def name_of(kind: Rounding) -> str:
    """Return the name of the step that rounds rows."""
    if kind == PLAIN:
        return "quantize"
    return "quantize_row" if kind[0] == ROW else "quantize_wide"
