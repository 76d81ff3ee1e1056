"""One operation in a program, on random input: by this a kernel is judged, tested and measured.

A case is the fields of a problem (``problems.py``) and, beside them, those of ``BESIDES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core._native import Epilogue, Kernel, KvCache, Library, Pool, Program, Weight
from infeng_core.kernels import problems
from infeng_core.kernels.check.lora import Lora, RandomAdapters, a_form
from infeng_core.kernels.problems import Fields

SEED = 20
BLOCK = 16  # rows of a panel, positions of a cache block
GUARD = 4096  # bytes before and behind a weight
STALE = -12345.0
WINDOW = 40  # positions, where a case needs a window and does not say which
LARGE = 1 << 24  # bytes; larger weights repeat their first panels
SAMPLE = 7  # so many of them: no power of two, so that a wrong panel shows

BESIDES = {"gather": "row_gather", "window": "window", "rot": None}
"""What a case may say and a problem does not, and the need that follows where it is not zero.

gather: rmsnorm reads rows by an index, in no order and some of them twice. window: attention sees so many positions
(0: all). rot: rope turns so many columns of a head (all).
"""

Arrays = list[tuple[str, NDArray[Any]]]
Batch = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
Sequences = Sequence[tuple[int, int]]
"""The rows of a step: (rows, first position) of each sequence."""


class NoJudgeError(LookupError):
    """The reference has no kernel to compare with, so the format or the op is a plugin's own."""


def asked(case: Fields) -> Fields:
    """Return the problem that a case poses: without what only a case says, with the needs that follow from it."""
    needs = {*case.get("needs", ()), *(need for name, need in BESIDES.items() if need and case.get(name))}
    rest = {name: value for name, value in case.items() if name not in BESIDES}
    return {**rest, "needs": sorted(needs)}


@dataclass(frozen=True)
class _Watched:
    """Memory of which a kernel may write nothing but the first ``columns`` of the rows of a step."""

    name: str
    memory: NDArray[Any]  # (rows, all columns)
    columns: int = 0


class OneOp:
    """A program of one op, ``calls`` times, over operands from a fixed seed: two of one case compute the same."""

    _weight: Callable[[int], Weight]
    _kv: KvCache

    def __init__(
        self,
        case: Fields,
        kernel: Kernel | None,
        reference: Library,
        steps: Sequence[Sequences],
        *,
        adapters: RandomAdapters | None = None,
        others: Sequence[Kernel] = (),
        pool: Pool | None = None,
        calls: int = 1,
        copies: int = 1,
        like: OneOp | None = None,
    ) -> None:
        """Make the program for batches like ``steps``.

        kernel: to run; None: the reference's. others: kernels for ops around it, each instead of the reference's.
        copies: of the weight, or layers of the cache; calls take turns on them. like: one of the same weights or cache,
        which both share. Raises NoJudgeError where the reference has no kernel that is needed, NativeError where a
        kernel declines.
        """
        self.case, self.calls, self.copies = case, calls, copies
        self._reference, self._others = reference, {other.op: other for other in others}
        self._random = np.random.default_rng(SEED)
        self._rows = [sum(rows for rows, _ in step) for step in steps]
        self.needs = frozenset(asked(case)["needs"])
        self._gather = "row_gather" in self.needs
        self._window = case.get("window", WINDOW) if "window" in self.needs else 0
        self.rows = max(self._rows)
        lengths: dict[int, int] = {}
        for step in steps:
            for index, (rows, begin) in enumerate(step):
                lengths[index] = max(lengths.get(index, 0), begin + rows)
        self._lengths = list(lengths.values())
        self.context = max(*self._lengths, case.get("context", 0), self.rows + 3)
        self._pool = pool or _small_pool()
        self.program = self._program(self.rows + 3 if self._gather else self.rows, self.rows, len(lengths))
        self._lora = None if adapters is None else Lora(self.program, adapters, self.rows, self._random)
        self._like = like
        self._vocabulary = 1  # of an embedding
        self._by_form: dict[str, int] = {}
        self._held: list[tuple[NDArray[Any], NDArray[Any] | float]] = []  # buffers, and what they hold before a run
        self._watched: list[_Watched] = []
        self._results: list[tuple[str, NDArray[Any], bool]] = []  # and whether its rows are those of a step
        self._bound = [(self.rows, kernel if kernel is not None else self._subject())]
        build = self._row_op if case["op"] in _native.ROW_OPS else getattr(self, f"_{case['op']}")
        emit = build()
        for call in range(calls):
            emit(call)
        self.program.finish()
        self._ranges = [self._lora.ranges(rows) if self._lora else () for rows in self._rows]
        self._batches = [self._batch(step) for step in steps]
        self._fill()
        self.damage: str | None = None
        """What else a run has written to, in words."""

    def run(self, step: int) -> Arrays:
        """Run a step on fresh input; return what the op wrote, by name."""
        self._fill()
        before = [watched.memory.copy() for watched in self._watched]
        self.program.run(*self._batches[step], self._ranges[step])
        rows = self._rows[step]
        for watched, old in zip(self._watched, before, strict=True):
            changed = watched.memory != old
            changed[:rows, : watched.columns] = False
            if changed.any():
                self.damage = self.damage or f"it wrote to {watched.name}"
        if not self.program.scratch_is_intact:
            self.damage = self.damage or "it wrote to more than its scratch memory"
        return [(name, (array[:rows] if by_row else array).copy()) for name, array, by_row in self._results]

    def once(self) -> None:
        """Run every step once, on whatever the buffers hold, for its time."""
        for batch, ranges in zip(self._batches, self._ranges, strict=True):
            self.program.run(*batch, ranges)

    def work(self) -> tuple[int, int]:
        """Return (multiply-adds, bytes) of one call, as the program's own profile counts them; 0 where unknown."""
        self.program.profile(True, events=0)
        self.once()
        phases = self.program.profile_read()["phases"]
        self.program.profile(False)
        return int(phases["macs"].sum()) // self.calls, int(phases["bytes"].sum()) // self.calls

    # One method for the ops over rows, one per other op: declares operands and returns what adds call number i.

    def _row_op(self) -> Callable[[int], None]:
        op, n = self.case["op"], self.case["n"]
        operands: dict[str, Any] = {}
        for name, kind, typical in _native.ROW_OPS[op]:
            if kind == "rows":
                operands[name] = self._rows_of(n) if operands else self._input("f32", n)
            else:
                operands[name] = self._vector(n) if kind == "vector" else typical
        steps, columns = self._epilogues(n)
        out = self._output(columns)

        def emit(call: int) -> None:
            first = [] if self._lora is None else [self._expand(call, n, n)]
            self.program.row_op(op, self._bound, n, out, [*first, *steps], **operands)

        return emit

    def _embed(self) -> Callable[[int], None]:
        weight, out = self._weights(), self._output(self.case["k"])
        return lambda call: self.program.embed(self._bound, weight(call), out)

    def _rmsnorm(self) -> Callable[[int], None]:
        k, heads = self.case["k"], 3 if "norm_heads" in self.needs else 1
        width = heads * _up(k) if heads > 1 else k
        x = self._input("f32", width)
        vector = None if "norm_plain" in self.needs else self._vector(k, "its weight")
        steps, columns = self._epilogues(width)
        out = self._output(columns)
        more = {"gather_samples": self._gather, "heads": heads, "size": k}
        offset = 1.0 if "norm_offset" in self.needs else 0.0
        return lambda call: self.program.rmsnorm(self._bound, x, vector, 1e-5, out, steps, offset=offset, **more)

    def _linear(self) -> Callable[[int], None]:
        n, k = self.case["n"], self.case["k"]
        x, weight = self._input(self.case["act"], k), self._weights()
        steps, columns = self._epilogues(n)
        out = self._output(columns)

        def emit(call: int) -> None:
            if self._lora is None:
                self.program.linear(self._bound, weight(call), x, out, steps)
                return
            first = self._expand(call, n, k)
            if "lora" in self.case.get("epilogues", ()):
                self.program.linear(self._bound, weight(call), x, out, [first, *steps])
                return
            self.program.linear(self._bound, weight(call), x, out, steps)
            self.program.epilogue(self._judge("epilogue", n=n, k=n, epilogues=["lora"]), out, n, out, [first])

        return emit

    def _shrink(self) -> Callable[[int], None]:
        assert self._lora is not None
        k, panels = self.case["k"], 1 if self._lora.adapters.count else 4
        x, zero, out = self._input(self.case["act"], k), self._buffer(panels * BLOCK), self._output(panels * BLOCK)
        u = self.program.view(0)  # what programs with adapters have first
        self._held.append((u, 0))
        self._results.append(("u", u, True))
        expand = self._judge("epilogue", n=panels * BLOCK, k=panels * BLOCK, epilogues=["lora"])

        def emit(call: int) -> None:
            assert self._lora is not None
            step = self._lora.shrink(self._bound, call, x, k, panels)
            self.program.epilogue(expand, zero, panels * BLOCK, out, [step])

        return emit

    def _rope(self) -> Callable[[int], None]:
        sizes = {name: self.case[name] for name in ("heads", "kv_heads", "head_dim")}
        heads, kv_heads, size = sizes.values()
        k_column, rot = _up(heads * size), self.case.get("rot", size)
        columns = k_column + kv_heads * size
        x = self._input("f32", columns, is_output=True)
        cos, sin = (self._table((self.context, rot // 2)) for _ in range(2))
        cos /= (length := np.hypot(cos, sin))  # rotations: what is turned again and again stays as large as it is
        sin /= length
        norms = [self._vector(size) if "rope_norm" in self.needs else None for _ in range(2)]
        scale = self._vector(self.context) if "rope_scale" in self.needs else None
        more: dict[str, Any] = {"q_norm": norms[0], "k_norm": norms[1], "q_scale": scale, "eps": 1e-5}
        return lambda call: self.program.rope(self._bound, x, **sizes, k_column=k_column, cos=cos, sin=sin, **more)

    def _kv_append(self) -> Callable[[int], None]:
        width = self._kv_columns()
        kv, x = self._cache(), self._input("f32", 2 * width)
        for layer in range(self.copies):
            self._held.append((kv.layer(layer), 0))
            self._results.append(("cache", kv.layer(layer), False))
        return lambda call: self.program.kv_append(self._bound, x, kv, call % self.copies, k_column=0, v_column=width)

    def _attention(self) -> Callable[[int], None]:
        heads, size = self.case["heads"], self.case["head_dim"]
        kv, x = self._cache() if self._like is None else self._like._kv, self._input("f32", heads * size)
        if self._like is None:
            self._append(kv)
        self._kv = kv
        self._watched += [_Watched("the cache", kv.layer(layer)) for layer in range(self.copies)]
        steps, columns = self._epilogues(heads * self.case.get("v_head_dim", size))
        out = self._output(columns)
        more: dict[str, Any] = {"window": self._window, "scale": float(np.float32(1.0 / np.sqrt(size)))}
        more["softcap"] = 1.5 if "softcap" in self.needs else 0.0
        more["mask"] = "full" if "mask" in self.needs else "causal"
        more["sinks"] = self._normal(heads) if "sinks" in self.needs else None
        more["slopes"] = self._vector(heads) / np.float32(64) if "alibi" in self.needs else None
        return lambda call: self.program.attention(
            self._bound, x, kv, call % self.copies, out, heads=heads, epilogues=steps, **more
        )

    def _route(self) -> Callable[[int], None]:
        n, k, top_k, act = (self.case[name] for name in ("n", "k", "heads", "act"))
        logits, x = self._rows_of(n), self._input(act, k)
        view = self.program.view(logits)
        self._held.append((view, np.round(self._normal(*view.shape) * 4) / 4))  # with equal ones
        # Both kinds of weights, each with room of its own, unless it is for its time.
        made = [(chosen, *self._copies(act, n, k, top_k)) for chosen in (False, True)[: 2 if self.calls == 1 else 1]]

        def emit(call: int) -> None:
            for chosen, routing, out in made:
                more = {"routing": routing, "columns": k, "share_of_chosen": chosen}
                self.program.route(self._bound, logits, x, out, **more)

        return emit

    def _copies(self, act: str, experts: int, columns: int, top_k: int) -> tuple[int, int]:
        """Declare what a route writes: return its routing and the value with the copies of rows."""
        routing = self.program.routing(experts=experts, top_k=top_k)
        *by_row, begin = self.program.view_routing(routing)
        names = ("experts", "weights", "places")
        self._results += [(name, view, True) for name, view in zip(names, by_row, strict=True)]
        self._results.append(("begin", begin, False))
        self._buffer(BLOCK)
        declare = self.program.buffer if act == "f32" else self.program.activation
        value = declare(columns, copies=top_k)
        self._buffer(BLOCK)
        views = (self.program.view(value),) if act == "f32" else self.program.view_activation(value)
        self._results += [("copies", view.reshape(len(view) // top_k, top_k, -1), True) for view in views]
        self._held += [(view, 99) for view in (*by_row, begin, *views)]
        return routing, value

    def _combine(self) -> Callable[[int], None]:
        n, top_k = self.case["n"], self.case["heads"]
        routing, x = self.program.routing(experts=top_k, top_k=top_k), self._rows_of(n, copies=top_k)
        _, weights, places, _ = self.program.view_routing(routing)
        self._held.append((weights, self._normal(*weights.shape)))
        self._held.append((places, self._random.permutation(places.size).reshape(places.shape)))
        steps, columns = self._epilogues(n)
        out = self._output(columns)
        shared, gate = self._rows_of(n), self._rows_of(1)

        def emit(call: int) -> None:
            self.program.combine(self._bound, x, n, out, steps, routing=routing, shared=shared, gate=gate)

        return emit

    # Kernels.

    def _subject(self) -> Kernel:
        fields = asked(self.case)
        op, _ = fields.pop("op"), fields.pop("rows")
        return self._judge(op, **fields)[0][1]

    def _judge(self, op: str, **fields: Any) -> list[tuple[int, Kernel]]:
        """Return the kernel of an op around the one that the case is about."""
        if op in self._others:
            return [(self.rows, self._others[op])]
        problem = problems.problem({"op": op, "rows": [1, self.rows], **fields})
        for kernel in self._reference.kernels:
            if kernel.op == op and kernel.accepts(problem):
                return [(self.rows, kernel)]
        raise NoJudgeError(f"the reference has no kernel for {problems.describe(problem)}")

    def _expand(self, call: int, columns: int, k: int) -> Epilogue:
        """Return the step that adds adapters' products, with the shrink before it."""
        assert self._lora is not None
        if self._lora.adapters.is_looked_up:
            return self._lora.lookup(columns // BLOCK)
        weight, act = a_form(self._lora.adapters.storage)
        shrink = self._judge("shrink", weight=weight, act=act, n=self._lora.columns, k=k)
        return self._lora.shrink(shrink, call, self._input(act, k), k, columns // BLOCK)

    # Operands.

    def _program(self, rows: int, samples: int, sequences: int) -> Program:
        return Program(self._pool, max_rows=rows, max_samples=samples, max_segments=sequences, context=self.context)

    def _normal(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, dtype=np.float32)

    def _buffer(self, columns: int, *, samples: bool = False) -> int:
        """Declare a buffer that holds zeros and has to keep them."""
        value = self.program.buffer(columns, samples=samples)
        self._watched.append(_Watched("memory beside its output", _whole(self.program.view(value))))
        return value

    def _output(self, columns: int) -> int:
        self._buffer(BLOCK)
        value = self.program.buffer(columns, samples=self._gather)
        self._buffer(BLOCK)
        view = self.program.view(value)
        self._held.append((view, STALE))
        self._watched.append(_Watched("more than its output", _whole(view), columns))
        self._results.insert(0, ("out", view, True))
        return value

    @staticmethod
    def _wide_rounding(columns: int) -> dict[str, Any]:
        """Return how ``columns`` are rounded other than plainly: rotated where they can be, in groups of any width."""
        if columns % 64:
            return {"group": 128 if columns // BLOCK % 2 else 256}
        return {"group": (64, 128, 256)[columns // 64 % 3], "rotated": True}

    def _output_activation(self, columns: int, **kind: Any) -> int:
        self._buffer(BLOCK)
        value = self.program.activation(columns, samples=self._gather, **kind)
        self._buffer(BLOCK)
        views: tuple[NDArray[Any], ...] = self.program.view_activation(value)
        for name, view in zip(("q", "scale", "sum"), views, strict=True):
            self._held.append((view, 99))
            self._watched.append(_Watched("more than its output", _whole(view), view.shape[1]))
            self._results.append((name, view, True))
        return value

    def _input(self, act: str, columns: int, *, is_output: bool = False) -> int:
        """Return the value that an op reads, in one of two forms: random rows of different magnitude."""
        if act in self._by_form:
            return self._by_form[act]
        if act == "f32":
            value = self._rows_of(columns)
            views: tuple[NDArray[Any], ...] = (self.program.view(value),)
        else:
            group = int(act.removeprefix("int8-g"))
            value = self.program.activation(columns, group=group)
            views = self.program.view_activation(value)
            rows = self._int8_rows(len(views[1]), views[1].shape[1], columns, group // 64)
            self._held += zip(views, rows, strict=True)
        self._by_form[act] = value
        if is_output:
            self._results.append(("out", views[0], True))
        for view in views:
            self._watched.append(_Watched("its input", _whole(view), columns if is_output else 0))
        return value

    def _rows_of(self, columns: int, *, copies: int = 1) -> int:
        """Declare a buffer of random rows, with a group of zeros in the first."""
        value = self.program.buffer(columns, copies=copies)
        rows = len(self.program.view(value))
        source = self._normal(rows, columns) * np.exp2(np.arange(rows, dtype=np.float32) % 7 - 3)[:, None]
        source[0, : min(64, columns - 1)] = 0
        self._held.append((self.program.view(value), source))
        return value

    def _int8_rows(self, rows: int, groups: int, columns: int, wide: int = 1) -> tuple[NDArray[Any], ...]:
        """Return (q, scale, sum) of rows in which some groups are zero and some hold nothing but the extremes.

        ``wide`` groups of 64 in a row have one scale.
        """
        style = self._random.integers(0, 8, (rows, groups))
        style[:, 0] = 7
        values = self._random.integers(-127, 128, (rows, groups, 64)).astype(np.int8)
        values[style == 0], values[style == 1], values[style == 2] = 0, 127, -127
        values.reshape(rows, -1)[:, columns:] = 0
        scales = np.where(style == 0, np.float32(0), np.abs(self._normal(rows, groups)) * np.float32(0.02))
        scales = scales[:, ::wide].repeat(wide, axis=1)[:, :groups]
        return values.reshape(rows, -1), scales, values.sum(axis=2, dtype=np.int32)

    def _table(self, shape: tuple[int, ...], name: str = "its tables") -> NDArray[np.float32]:
        """Return random values in memory of their own, which is watched; a program would copy others."""
        array: NDArray[np.float32] = _bytes(_native.Arena(4 * int(np.prod(shape)), huge_pages=False)).view(np.float32)
        array = array.reshape(shape)
        array[:] = self._normal(*shape)
        self._watched.append(_Watched(name, array.reshape(1, -1)))
        return array

    def _vector(self, n: int, name: str = "its vectors") -> NDArray[np.float32]:
        vector = self._table((n,), name)
        vector[:] = np.float32(1) + vector / np.float32(4)
        return vector

    def _weights(self) -> Callable[[int], Weight]:
        """Return what gives the weight of a call."""
        self._weight = self._packed() if self._like is None else self._like._weight
        self._vocabulary = self._weight(0).n
        return self._weight

    def _packed(self) -> Callable[[int], Weight]:
        """Make ``copies`` weights side by side, with memory around them that is watched."""
        format, n, k = self.case["weight"], self.case["n"], self.case["k"]
        panels, size = n // BLOCK, _native.panel_bytes(format, k)
        is_large = self.copies * panels * size > LARGE
        sample = min(panels, SAMPLE) if is_large else panels
        # Lanes without an output are part of the case.
        source = self._normal(sample * BLOCK - (3 if panels > 1 and not is_large else 0), k)
        packed = _native.Arena(sample * size, huge_pages=False)
        _native.pack(format, source, packed)
        arena = _native.Arena(2 * GUARD + self.copies * panels * size, huge_pages=is_large)
        memory = _bytes(arena)
        whole = memory[GUARD : GUARD + self.copies * panels * size].reshape(self.copies, panels, size)
        for begin in range(0, panels, sample):
            part = whole[:, begin : begin + sample]
            part[:] = _bytes(packed)[: sample * size].reshape(sample, size)[: part.shape[1]]
        if not is_large:
            self._watched.append(_Watched("its weight", memory.reshape(1, -1)))
        outputs = n if is_large else len(source)
        offsets = [GUARD + copy * panels * size for copy in range(self.copies)]
        return lambda call: Weight(format, outputs, k, panels, size, arena, offsets[call % self.copies])

    def _epilogues(self, columns: int) -> tuple[list[Epilogue], int]:
        """Return the case's steps behind ``columns`` columns, adapters' left out, and the columns of the result."""
        steps: list[Epilogue] = []
        for step in self.case.get("epilogues", ()):
            name, a, b = (step, 1.5, 2.0) if isinstance(step, str) else step
            if name == "residual" or name.startswith("mul"):
                value = self._rows_of(columns)
                self._watched.append(_Watched("its operand", _whole(self.program.view(value))))
                function = name.removeprefix("mul").lstrip("_") or "identity"
                steps.append(Epilogue.residual(value) if name == "residual" else Epilogue.mul(value, function))
            elif problems.is_gated(name):
                steps.append(Epilogue.gated_mul(name.removesuffix("_mul"), a, b))
                columns //= 2
            elif name in ("quantize", "quantize_wide"):
                kind = self._wide_rounding(columns) if name == "quantize_wide" else {}
                steps.append(Epilogue.quantize(self._output_activation(columns, **kind)))
            elif name in ("scale", "softcap"):
                steps.append(getattr(Epilogue, name)(a))
            elif name in ("bias", "row_scale"):
                steps.append(getattr(Epilogue, name)(self._vector(columns)))
            elif name != "lora":
                steps.append(Epilogue.activate(name))
        return steps, columns

    # Key/value caches.

    def _cache(self) -> KvCache:
        blocks = sum(_up(length) // BLOCK for length in self._lengths)
        sizes = {name: self.case[name] for name in ("kv_heads", "head_dim", "v_head_dim") if name in self.case}
        return KvCache(self.case["kv"], layers=self.copies, blocks=blocks, **sizes)

    def _kv_columns(self) -> int:
        size = self.case["head_dim"]
        return _up(self.case["kv_heads"] * max(size, self.case.get("v_head_dim", size)))

    def _append(self, kv: KvCache) -> None:
        """Give all sequences a past."""
        names = ("kv", "kv_heads", "head_dim", "v_head_dim")
        fields = {name: self.case[name] for name in names if name in self.case}
        if "head_sizes" in self.needs:
            fields["needs"] = ["head_sizes"]
        rows = min(max(self._lengths), 512)
        width = self._kv_columns()
        program = self._program(rows, 1, 1)
        kernel = self._judge("kv_append", context=self.context, **fields)[0][1]
        x = program.buffer(2 * width)
        for layer in range(self.copies):
            program.kv_append([(rows, kernel)], x, kv, layer, k_column=0, v_column=width)
        program.finish()
        for index, length in enumerate(self._lengths):
            for begin in range(0, length, rows):
                program.view(x)[:] = self._normal(rows, 2 * width)
                step = [(0, 0)] * index + [(min(rows, length - begin), begin)]
                program.run(*self._batch(step, is_op=False))

    def _batch(self, step: Sequences, *, is_op: bool = True) -> Batch:
        """Return tokens, positions, segments, block tables and sampled rows of a step."""
        blocks = [_up(length) // BLOCK for length in self._lengths]
        segments, row = [], 0
        for index, (rows, begin) in enumerate(step):
            if rows:
                segments.append((row, row + rows, begin, sum(blocks[:index])))
            row += rows
        positions = np.concatenate([np.arange(p, p + e - b, dtype=np.int32) for b, e, p, _ in segments])
        samples = np.zeros(0, np.int32)
        if self._gather:
            samples = (5 * np.arange(row, dtype=np.int32) + 2) % (row + 3)
            samples[2::3] = samples[0]
            positions, segments = np.arange(row + 3, dtype=np.int32), []
        tokens = 7 * np.arange(len(positions), dtype=np.int32) % self._vocabulary
        # Blocks are numbered backwards, so that a kernel that ignores the table is found out.
        tables = np.arange(sum(blocks), dtype=np.int32)[::-1].copy()
        for _, _, begin, table in segments if self._window and is_op else ():  # what lies before it needs no blocks
            tables[table : table + max(begin - self._window + 1, 0) // BLOCK] = -1
        return tokens, positions, np.array(segments, np.int32).reshape(-1, 4), tables, samples

    def _fill(self) -> None:
        for view, values in self._held:
            view[:] = values


@cache
def _small_pool() -> Pool:
    return Pool(2, spin_us=0)  # two workers, so that a kernel whose tiles depend on each other is found out


def _bytes(arena: _native.Arena) -> NDArray[np.uint8]:
    return np.asarray(memoryview(arena)).view(np.uint8)


def _whole(view: NDArray[Any]) -> NDArray[Any]:
    """Return all memory of a buffer: rows with their padding."""
    return np.lib.stride_tricks.as_strided(view, (len(view), view.strides[0] // view.itemsize))


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
