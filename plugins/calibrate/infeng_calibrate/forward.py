"""A forward pass of calibration text through a model whose tensors become known one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_calibrate import _native
from infeng_calibrate.routing import Routed, chosen
from infeng_calibrate.stages import Stage, route_of, stages
from infeng_calibrate.store import Store, release
from infeng_core.api import EngineConfig, KernelError, NativeError
from infeng_core.api.engines import Limits
from infeng_core.api.formats import (
    ExpertLinear,
    LoadedModel,
    ModelConfig,
    PackedTensor,
    aligned_bytes,
    families,
    layout,
    rotated_inputs,
    writes,
)
from infeng_core.api.kernels import KvCache, Pool, Program, Selector, plan

BLOCK = 16  # positions of a cache block
ROWS = 1024  # tokens of a step
_NOTHING = np.empty((0, 0), np.float32)

Texts = Sequence[NDArray[np.int32]]
"""Token ids of each text."""

Runner = Callable[[Mapping[str, NDArray[np.float32]], Texts], dict[str, NDArray[np.float32]]]
"""Computes a stage from its inputs of one step, the rows of all texts, and the texts' ids; returns views of outputs."""


@dataclass
class Forward:
    """The hidden states of ``texts`` before a linear op, computed with the kernels of serving.

    Each of ``steps`` holds consecutive texts that run together, up to ``most`` tokens. Every value that a later stage
    reads is kept as float32, (tokens, columns) of each step.
    """

    model: ModelConfig
    texts: Texts
    config: EngineConfig
    selector: Selector
    most: int = ROWS
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # as gathered; set before the first tensor
    store: Store = field(default_factory=Store)
    _tensors: dict[str, PackedTensor] = field(default_factory=dict)
    _values: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = families()[self.model.family].graph(self.model)
        self._known = graph.values
        self.logits = graph.logits
        self._stages = stages(graph)
        self._inputs = {spec.name: spec.k for spec in layout(self.model).tensors}
        self._next = 0
        self.steps = list(_together(self.texts, self.most))
        self._length = max(len(text) for text in self.texts)
        self._blocks = max(sum(-(-len(text) // BLOCK) for text in step) for step in self.steps)
        self._config = replace(
            self.config,
            kv_cache=replace(self.config.kv_cache, dtype="f32"),
            adapters=replace(self.config.adapters, max_resident=0),
        )
        self._pool = Pool(self.selector.cpu.place(self.config.threads, 0).workers, spin_us=0)
        self._cache = KvCache(
            "f32",
            layers=1,  # a stage has one layer at most
            blocks=self._blocks,
            **self.model.cache_heads,
        )

    def inputs(self, tensor: str) -> list[NDArray[np.float32]] | Routed | None:
        """Return the input of the next stage's linear op, (tokens, k) of each step; None if its weight is another."""
        stage = self._stages[self._next] if self._next < len(self._stages) else None
        if stage is None or stage.linear is None or stage.linear.weight != tensor:
            return None
        op = stage.linear
        k = self._inputs[tensor]  # a value is padded to whole panels
        if not isinstance(op, ExpertLinear):
            return [rows[:, :k] for rows in self._values[op.x]]
        route = route_of(stage)
        logits = [rows[:, : route.experts] for rows in self._values[route.logits]]
        is_made = op.x != route.out
        inputs = [rows[:, :k] for rows in self._values[op.x if is_made else route.x]]
        return Routed(inputs, [chosen(one, route.top_k) for one in logits], route.experts, is_made)

    @property
    def has_experts(self) -> bool:
        """Whether a linear op of the model has experts."""
        return any(isinstance(stage.linear, ExpertLinear) for stage in self._stages)

    def is_wanted(self, tensor: str) -> bool:
        """Return whether a stage that has not run yet reads ``tensor``."""
        later = (stage for stage in self._stages[self._next :] if not self.is_last(stage))
        return any(getattr(op, "weight", None) == tensor for stage in later for op in stage.all_ops)

    def put(self, tensor: PackedTensor) -> None:
        """Take a packed tensor and run all stages whose tensors are known; its memory may change afterwards."""
        self._tensors[tensor.name] = tensor
        while self._next < len(self._stages) and self._is_known(self._stages[self._next]):
            stage = self._stages[self._next]
            if self.is_last(stage):  # its logits are not needed
                self._next = len(self._stages)
                break
            self._run(stage)
            self._next += 1
        self._keep(tensor)

    def _keep(self, latest: PackedTensor) -> None:
        """Drop the tensors that no later stage runs again; copy ``latest``, whose memory will change."""
        wanted = {getattr(op, "weight", None) for stage in self._stages[self._next :] for op in stage.again}
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in wanted}
        if latest.name in self._tensors:
            panels = aligned_bytes(latest.nbytes)
            panels[:] = np.frombuffer(latest.buffer, np.uint8, latest.nbytes, latest.offset)
            self._tensors[latest.name] = latest.holding(panels, latest.name)

    def is_last(self, stage: Stage) -> bool:
        """Return whether a stage computes the logits."""
        return any(writes(op) == self.logits for op in stage.ops)

    def _is_known(self, stage: Stage) -> bool:
        return all(getattr(op, "weight", None) in {None, *self._tensors, *self.vectors} for op in stage.all_ops)

    def course(self) -> Iterator[tuple[Stage, set[str]]]:
        """Yield every stage with the names of the values that later stages read."""
        for index, stage in enumerate(self._stages):
            yield stage, {name for one in self._stages[index + 1 :] for name in one.takes}

    def runner(self, stage: Stage, tensors: Mapping[str, PackedTensor]) -> Runner:
        """Return a function that computes ``stage`` of one step with these tensors and all vectors."""
        rows = max(sum(map(len, step)) for step in self.steps)
        limits = Limits(rows, 1, max(map(len, self.steps)), -(-self._length // BLOCK) * BLOCK, self._blocks)
        graph = stage.graph(self._known, {name for name, tensor in tensors.items() if not tensor.quant.is_float})
        program, planner, _ = plan(
            self._model(tensors),
            self._config,
            limits,
            self.selector,
            self._pool,
            self._cache,
            graph=graph,
            kept=stage.kept,
        )
        buffers = {name: planner.buffer(name) for name in (*stage.takes, *stage.kept)}
        program.finish()
        views = {name: program.view(buffer) for name, buffer in buffers.items()}

        def run(values: Mapping[str, NDArray[np.float32]], texts: Texts) -> dict[str, NDArray[np.float32]]:
            for name in stage.takes:
                views[name][: len(values[name])] = values[name]
                release(values[name])
            self._step(program, texts)
            rows = sum(map(len, texts))
            sizes = {name: (rows * self._known[name].copies, self._known[name].columns) for name in stage.kept}
            return {name: views[name][:count, :columns] for name, (count, columns) in sizes.items()}

        return run

    def _run(self, stage: Stage) -> None:
        """Compute the outputs of ``stage`` for every step."""
        run = self.runner(stage, self._tensors)
        made: dict[str, list[NDArray[np.float32]]] = {name: [] for name in stage.kept}
        later = self._stages[self._next + 1 :]
        wanted = {stage.shows, *(name for one in later for name in one.takes)}
        last = [rows for name, rows in self._values.items() if name not in wanted or name in made]
        for index, texts in enumerate(self.steps):
            shown = run({name: self._values[name][index] for name in stage.takes}, texts)
            for rows in last:
                rows[index] = _NOTHING  # frees memory for the outputs
            for name, given in shown.items():
                made[name].append(self.store.keep(given))
        self._values = {name: rows for name, rows in {**self._values, **made}.items() if name in wanted}

    def _step(self, program: Program, texts: Texts) -> None:
        lengths = np.array([len(text) for text in texts])
        ends, blocks = np.cumsum(lengths), -(-lengths // BLOCK)
        segments = np.stack([ends - lengths, ends, np.zeros_like(ends), np.cumsum(blocks) - blocks], axis=1)
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        table, last = np.arange(blocks.sum(), dtype=np.int32), np.array([ends[-1] - 1], np.int32)
        try:
            program.run(np.concatenate(texts), positions, segments.astype(np.int32), table, last)
        except NativeError as error:
            raise KernelError("calibration", str(error), "convert without it (--calibrate none)") from error

    def _model(self, tensors: Mapping[str, PackedTensor]) -> LoadedModel:
        formats = {name: tensor.format for name, tensor in tensors.items()}
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        here = Path()
        return LoadedModel(self.model, here, tensors, self.vectors, here, formats, nbytes, "calibration")


def _together(texts: Texts, most: int) -> Iterator[list[NDArray[np.int32]]]:
    """Yield runs of consecutive texts with ``most`` tokens together at most, or of one text with more."""
    found: list[NDArray[np.int32]] = []
    for text in texts:
        if found and sum(map(len, found)) + len(text) > most:
            yield found
            found = []
        found.append(text)
    yield found


def quantized(
    x: NDArray[np.float32],
    group: int = 64,
    *,
    rotation: int = 0,
    threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return ``x``, (tokens, k), as integer kernels read it: int8 with a scale per ``group`` inputs (docs/numerics.md).

    rotation: so many inputs are rotated together first; the result is not rotated back. out: receives the result; may
    be x.
    """
    read = np.ascontiguousarray(rotated_inputs(x, rotation) if rotation else x)
    group = min(group, max(x.shape[1], 1))
    return _native.round_inputs(read, group, threads, np.empty_like(read) if out is None else out)
