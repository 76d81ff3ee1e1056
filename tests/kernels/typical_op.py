"""Typical problems of every op on TinyLlama-1.1B's shapes, and a program of one kernel on one of them, to be timed.

The problems are those by which the engine explains its choices (``infeng_core.plug.typical``), in every weight format
and cache format that is installed. Matrices that the engine would not use are left out: formats other than the default
are represented by one shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernels.harness import FLOAT_FORMATS, INT_FORMATS
from numpy.typing import NDArray

from infeng_core import _native as native
from infeng_core.plug import problems
from infeng_core.plug.config import OPS, SCHEMA
from infeng_core.plug.manager import Plugins
from infeng_core.plug.manifest import load_config
from infeng_core.plug.typical import Shape, typical

FORMATS = FLOAT_FORMATS + INT_FORMATS
BLOCK = 16
CONTEXT = 1024
SHAPE = Shape(context=CONTEXT)
MODEL_PANELS = 4  # packed for real; the rest of a weight repeats them, for values do not matter
SMALL = 1 << 22  # multiply-adds or elements below which one op is too short to be timed alone
RANK = 16  # of adapters, which share the rows of a step
MOST_ADAPTERS = 4
MOST_SEQUENCES = 16  # more rows than that are a chunk of one prompt


def cases(op: str) -> list[problems.Fields]:
    """Return what a model asks of ``op``, without the number of rows."""
    found: dict[str, problems.Fields] = {}
    if op == "shrink":
        for dtype in SCHEMA["adapters"]["dtype"].metadata["kind"].words:
            config = load_config(overrides={"adapters.dtype": dtype})
            asked = [problems.fields(problem) for problem in typical(op, config, SHAPE, lambda name: FORMATS[0])]
            found |= {key(fields): fields for fields in asked}
        return [{name: value for name, value in fields.items() if name != "rows"} for fields in found.values()]
    for weight in FORMATS:
        for kv in SCHEMA["kv_cache"]["dtype"].metadata["kind"].words:
            config = load_config(overrides={"kv_cache.dtype": kv, "adapters.max_resident": 0})
            asked = [problems.fields(problem) for problem in typical(op, config, SHAPE, lambda name, f=weight: f)]
            is_default = weight == config.model.format
            each = {key(fields): fields for fields in asked}
            if op == "linear" and not is_default:  # down_proj: the longest sums, and a residual
                each = {name: fields for name, fields in each.items() if fields["k"] == SHAPE.intermediate}
            if op == "linear" and is_default:
                adapted = [fields | {"epilogues": ["lora", *fields.get("epilogues", ())]} for fields in asked]
                each |= {key(fields): fields for fields in adapted}
            found |= each
    return [{name: value for name, value in fields.items() if name != "rows"} for fields in found.values()]


def all_cases() -> Iterator[problems.Fields]:
    """Yield the cases of all ops."""
    for op in OPS:
        yield from cases(op)


def key(fields: problems.Fields) -> str:
    """Return a name for a problem, of words that a command line can select: ``linear-int4-g64-2048x5632+residual``."""
    formats = [fields[name] for name in ("weight", "kv") if name in fields]
    sizes = [f"{fields['n']}x{fields['k']}"] if "n" in fields else []
    sizes += [f"{fields['heads']}heads"] if "heads" in fields else []
    return "-".join([fields["op"], *formats, *sizes]) + "".join(f"+{name}" for name in fields.get("epilogues", ()))


def problem(fields: problems.Fields, rows: int, threads: int) -> native.Problem:
    """Return the problem of a case for batches of exactly ``rows``."""
    return problems.problem({**fields, "rows": [rows, rows], "workers": threads})


@dataclass(frozen=True)
class Typical:
    """A program that does one op ``calls`` times; ``macs`` and ``bytes`` are those of one call, 0 where unknown."""

    program: native.Program
    batch: tuple[NDArray[np.int32], ...]
    calls: int
    keep: tuple[Any, ...] = ()
    adapters: tuple[tuple[int, int, native.Adapter, float], ...] = ()

    def once(self) -> None:
        """Do the op ``calls`` times."""
        self.program.run(*self.batch, self.adapters)

    def work(self) -> tuple[int, int]:
        """Return (multiply-adds, bytes) of one call, as the program's own profile counts them."""
        self.program.profile(True, events=0)
        self.once()
        phases = self.program.profile_read()["phases"]
        self.program.profile(False)
        return int(phases["macs"].sum()) // self.calls, int(phases["bytes"].sum()) // self.calls


def build(fields: problems.Fields, kernel: native.Kernel, rows: int, pool: native.Pool) -> Typical:
    """Return a program of ``kernel`` on a case, its inputs filled with random values.

    Up to 16 rows are sequences of 1,024 positions that decode; more are the last rows of a prompt as long.
    """
    return MAKERS[fields["op"]](Maker(fields, kernel, rows, pool))


class Maker:
    """What the ops' makers share."""

    def __init__(self, fields: problems.Fields, kernel: native.Kernel, rows: int, pool: native.Pool) -> None:
        self.fields, self.rows = fields, rows
        self.bound = [(rows, kernel)]
        self.program = native.Program(pool, max_rows=rows, max_samples=1, max_segments=rows, context=CONTEXT)
        self.random = np.random.default_rng(1)
        self.lora: Lora | None = None
        if fields["op"] == "shrink" or "lora" in fields.get("epilogues", ()):
            self.lora = Lora(self.program, fields, rows)
        self.inputs: list[int] = []
        self.activations: list[int] = []

    def input(self, columns: int) -> int:
        """Return a buffer that ``finish`` fills."""
        self.inputs.append(self.program.buffer(columns))
        return self.inputs[-1]

    def input_activation(self, columns: int) -> int:
        """Return an activation that ``finish`` fills."""
        self.activations.append(self.program.activation(columns))
        return self.activations[-1]

    def vector(self, size: int) -> NDArray[np.float32]:
        """Return random values near one."""
        return 1 + self.random.standard_normal(size, np.float32) / 4

    def weight(self) -> native.Weight:
        """Return a weight of the case's format and shape."""
        form, k, panels = self.fields["weight"], self.fields["k"], self.fields["n"] // BLOCK
        size, sample = native.panel_bytes(form, k), min(MODEL_PANELS, self.fields["n"] // BLOCK)
        model = native.Arena(sample * size, huge_pages=False)
        native.pack(form, self.random.standard_normal((sample * BLOCK, k), np.float32), model)
        arena = native.Arena(panels * size)
        whole = _bytes(arena)[: panels * size].reshape(panels, size)
        for begin in range(0, panels, sample):
            whole[begin : begin + sample] = _bytes(model)[: sample * size].reshape(sample, size)[: panels - begin]
        return native.Weight(form, self.fields["n"], k, panels, size, arena)

    def epilogues(self, columns: int) -> tuple[list[native.Epilogue], int]:
        """Return the case's list, and the columns that are left of ``columns``."""
        steps: list[native.Epilogue] = []
        for name in self.fields.get("epilogues", ()):
            if name == "lora":
                steps.append(self.lora.expand(columns))
            elif name == "residual":
                steps.append(native.Epilogue.residual(self.input(columns)))
            elif name == "quantize":
                steps.append(native.Epilogue.quantize(self.program.activation(columns)))
            elif name == "silu_mul":
                steps.append(native.Epilogue.silu_mul())
                columns //= 2
            else:
                steps.append(getattr(native.Epilogue, name)(self.vector(columns)))
        return steps, columns

    def calls(self, work: int) -> int:
        """Return how often an op of ``work`` multiply-adds or elements is to be done for a time worth measuring."""
        return int(np.clip(SMALL // max(work, 1), 1, 64))

    def finish(self, calls: int, *keep: Any, cached: bool = False) -> Typical:
        """Finish the program and fill what the op reads."""
        self.program.finish()
        for buffer in self.inputs:
            view = self.program.view(buffer)
            view[:] = self.random.standard_normal(view.shape, np.float32)
        for activation in self.activations:
            q, scale, sums = self.program.view_activation(activation)
            q[:] = self.random.integers(-127, 128, q.shape)
            scale[:] = 0.01
            sums[:] = q.reshape(len(q), -1, 64).sum(axis=2, dtype=np.int32)
        adapters = () if self.lora is None else self.lora.ranges()
        return Typical(self.program, self.batch(cached), calls, keep, adapters)

    def batch(self, cached: bool) -> tuple[NDArray[np.int32], ...]:
        """Return the arrays of a step."""
        rows, blocks, none = self.rows, CONTEXT // BLOCK, np.zeros(0, np.int32)
        tokens = np.zeros(rows, np.int32)
        if not cached:
            return tokens, np.arange(rows, dtype=np.int32), np.zeros((0, 4), np.int32), none, none
        if rows <= MOST_SEQUENCES:
            segments = [(row, row + 1, CONTEXT - 1, row * blocks) for row in range(rows)]
            positions = np.full(rows, CONTEXT - 1, np.int32)
            tables = np.arange(rows * blocks, dtype=np.int32)
        else:
            segments = [(0, rows, CONTEXT - rows, 0)]
            positions = np.arange(CONTEXT - rows, CONTEXT, dtype=np.int32)
            tables = np.arange(blocks, dtype=np.int32)
        return tokens, positions, np.array(segments, np.int32), tables, none

    def cache(self) -> native.KvCache:
        """Return a cache with room for every sequence; zeros are keys and values like any other."""
        sequences = self.rows if self.rows <= MOST_SEQUENCES else 1
        return native.KvCache(
            self.fields["kv"],
            layers=1,
            blocks=sequences * CONTEXT // BLOCK,
            kv_heads=self.fields["kv_heads"],
            head_dim=self.fields["head_dim"],
        )


class Lora:
    """Adapters of RANK on the rows of a program, as many as there are rows up to MOST_ADAPTERS.

    What is timed alone has no other half: the u of a linear is looked up as that of embeddings is, and nothing is
    expanded behind a shrink.
    """

    def __init__(self, program: native.Program, fields: problems.Fields, rows: int) -> None:
        self._program, self._rows = program, rows
        is_float = fields["op"] == "shrink" and fields["act"] == "f32"
        self._dtype = fields["weight"] if is_float else "int8"
        self._format = fields["weight"] if fields["op"] == "shrink" else "int8-row"
        self._random = np.random.default_rng(2)
        self._tensors: list[Any] = []
        self._embedding: Any = None
        program.open_adapters(self._dtype, columns=RANK, max_ranges=rows)

    def shrink(self, kernels: Any, x: int, k: int) -> int:
        """Add a shrink over ``k`` inputs; return its slot, for which a panel of outputs has to be there."""
        slot = self._program.shrink(kernels, f"call{len(self._tensors)}", x, k=k, panels=1)
        arena = native.Arena(native.panel_bytes(self._format, k), huge_pages=False)
        native.pack(self._format, self._random.standard_normal((RANK, k), np.float32), arena)
        a = _bytes(arena)[: native.panel_bytes(self._format, k)]
        self._tensors.append((f"call{len(self._tensors)}", RANK, a, np.ones(RANK, np.float32), []))
        return slot

    def expand(self, columns: int) -> native.Epilogue:
        """Return a step that adds int8 products to ``columns`` outputs; a program can have one."""
        panels = columns // BLOCK
        b = self._random.integers(-127, 128, (panels, RANK, BLOCK), np.int8)
        part = (RANK, 0, 0, 1, panels, b, np.full(columns, 1e-3, np.float32), None, None)
        self._embedding = (RANK, self._random.standard_normal((1, RANK), np.float32), 1.0, part)
        return native.Epilogue.lora(self._program.embedding_slot(vocabulary=1, panels=panels))

    def ranges(self) -> tuple[tuple[int, int, native.Adapter, float], ...]:
        """Return which rows use which adapter."""
        rows, count = self._rows, min(self._rows, MOST_ADAPTERS)
        made = [self._program.adapter(self._dtype, self._tensors, embedding=self._embedding) for _ in range(count)]
        return tuple((rows * i // count, rows * (i + 1) // count, adapter, 1.0) for i, adapter in enumerate(made))


def _embed(make: Maker) -> Typical:
    weight, out = make.weight(), make.program.buffer(make.fields["k"])
    calls = make.calls(make.rows * make.fields["k"])
    for _ in range(calls):
        make.program.embed(make.bound, weight, out)
    return make.finish(calls)


def _rmsnorm(make: Maker) -> Typical:
    k = make.fields["k"]
    x, out, weight = make.input(k), make.program.buffer(k), make.vector(k)
    steps, _ = make.epilogues(k)
    calls = make.calls(make.rows * k)
    for _ in range(calls):
        make.program.rmsnorm(make.bound, x, weight, 1e-5, out, steps)
    return make.finish(calls)


def _linear(make: Maker) -> Typical:
    n, k = make.fields["n"], make.fields["k"]
    x = make.input(k) if make.fields["act"] == "f32" else make.input_activation(k)
    steps, columns = make.epilogues(n)
    weight, out = make.weight(), make.program.buffer(columns)
    calls = make.calls(make.rows * n * k)
    for _ in range(calls):
        make.program.linear(make.bound, weight, x, out, steps)
    return make.finish(calls)


def _epilogue(make: Maker) -> Typical:
    n = make.fields["n"]
    x = make.input(n)
    steps, columns = make.epilogues(n)
    out = make.program.buffer(columns)
    calls = make.calls(make.rows * n)
    for _ in range(calls):
        make.program.epilogue(make.bound, x, n, out, steps)
    return make.finish(calls)


def _rope(make: Maker) -> Typical:
    sizes = {name: make.fields[name] for name in ("heads", "kv_heads", "head_dim")}
    heads, kv_heads, size = sizes.values()
    x = make.input((heads + kv_heads) * size)
    angles = np.arange(CONTEXT)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    calls = make.calls(make.rows * (heads + kv_heads) * size)
    for _ in range(calls):
        make.program.rope(make.bound, x, **sizes, k_column=heads * size, **tables)
    return make.finish(calls)


def _kv_append(make: Maker) -> Typical:
    width = make.fields["kv_heads"] * make.fields["head_dim"]
    x, cache = make.input(2 * width), make.cache()
    calls = make.calls(make.rows * 2 * width)
    for _ in range(calls):
        make.program.kv_append(make.bound, x, cache, 0, k_column=0, v_column=width)
    return make.finish(calls, cached=True)


def _attention(make: Maker) -> Typical:
    heads, size = make.fields["heads"], make.fields["head_dim"]
    q, cache = make.input(heads * size), make.cache()
    steps, columns = make.epilogues(heads * size)
    out = make.program.buffer(columns)
    calls = make.calls(2 * make.rows * heads * size * CONTEXT)
    for _ in range(calls):
        make.program.attention(make.bound, q, cache, 0, out, heads=heads, scale=size**-0.5, epilogues=steps)
    return make.finish(calls, cached=True)


def _shrink(make: Maker) -> Typical:
    k = make.fields["k"]
    x = make.input(k) if make.fields["act"] == "f32" else make.input_activation(k)
    out = make.program.buffer(BLOCK)
    asked = problems.problem({"op": "epilogue", "rows": [1, make.rows], "n": BLOCK, "k": BLOCK, "epilogues": ["lora"]})
    libraries = Plugins.discover().libraries()
    expand = next(k for library in libraries for k in library.kernels if k.op == "epilogue" and k.accepts(asked))
    calls = make.calls(make.rows * RANK * k)
    for _ in range(calls):
        slot = make.lora.shrink(make.bound, x, k)
        make.program.epilogue([(make.rows, expand)], out, BLOCK, out, [native.Epilogue.lora(slot)])
    return make.finish(calls)


MAKERS = {
    "embed": _embed,
    "rmsnorm": _rmsnorm,
    "linear": _linear,
    "epilogue": _epilogue,
    "rope": _rope,
    "kv_append": _kv_append,
    "attention": _attention,
    "shrink": _shrink,
}


def _bytes(arena: native.Arena) -> NDArray[np.uint8]:
    return np.asarray(memoryview(arena)).view(np.uint8)
