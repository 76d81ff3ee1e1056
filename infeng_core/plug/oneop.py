"""One operation alone in a program, on random input: what a kernel is judged by before its first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core._native import Epilogue, Kernel, KvCache, Library, Pool, Program, Weight
from infeng_core.plug import onelora, problems
from infeng_core.plug.onelora import Adapters
from infeng_core.plug.problems import Fields

SEED = 20
MAC_BUDGET = 1 << 25  # multiplications of all row counts together: some tens of milliseconds of the reference
BLOCK = 16
WINDOW = 2 * BLOCK + 5

Arrays = list[tuple[str, NDArray[np.generic]]]
Reader = Callable[[int], Arrays]  # rows -> what the kernel wrote


class NoJudgeError(LookupError):
    """The reference has no kernel to compare with, so the format or the op is a plugin's own."""


class Case:
    """One program with the kernel under test in it; inputs come from a fixed seed, so that two cases see the same."""

    def __init__(self, reference: Library, case: Fields, kernel: Kernel | None, dtype: str | None = None) -> None:
        self.reference = reference
        self.case = case
        self.needs = frozenset(case.get("needs", ()))
        self.kernel = kernel
        self.random = np.random.default_rng(SEED)
        self.dtype = dtype  # of adapters
        self.adapters: Adapters | None = None
        counts = row_counts(case)
        self.counts = counts if dtype is None else _dealt(counts, dtype, onelora.dtypes(case))
        self.rows = counts[-1]
        self.context = max(int(case.get("context", 0)), self.rows + 2 * BLOCK)
        self.program = self._program(self.rows)

    def run(self) -> dict[int, Arrays]:
        """Return what the kernel wrote, for each number of rows."""
        read = getattr(self, f"_{self.case['op']}")()
        self.program.finish()
        if self.adapters is not None:
            place = self.adapters.place_columns if self.case["op"] == "shrink" else self.adapters.place
            place(self.program)
        results = {}
        for rows in self.counts:
            self._step(self.program, *self._segments(rows), self.adapters.rows(rows) if self.adapters else [])
            results[rows] = [(name, array.copy()) for name, array in read(rows)]
        return results

    # One method per op: adds it to the program and returns the reader of its results.

    def _embed(self) -> Reader:
        weight = self._weight(self.case["weight"], self.case["n"], self.case["k"])
        out = self.program.buffer(self.case["k"])
        self.program.embed([(self.rows, self._subject())], weight, out)
        return lambda rows: [("out", self.program.view(out)[:rows])]

    def _rmsnorm(self) -> Reader:
        k, heads = self.case["k"], 3 if "norm_heads" in self.needs else 1
        gathers = "row_gather" in self.needs
        width = heads * _up(k) if heads > 1 else k
        x = self._input(self.program, width, self.rows)
        out = self.program.buffer(width, samples=gathers)
        steps, read = self._epilogues(k, x, k, samples=gathers)
        self.program.rmsnorm(
            [(self.rows, self._subject())],
            x,
            None if "norm_plain" in self.needs else self._vector(k),
            1e-5,
            out,
            steps,
            gather_samples=gathers,
            offset=1.0 if "norm_offset" in self.needs else 0.0,
            heads=heads,
            size=k,
        )
        return self._reader(out, read)

    def _linear(self) -> Reader:
        n, k = self.case["n"], self.case["k"]
        x = self._input(self.program, k, self.rows)
        steps, read = self._epilogues(n, x, k)
        if self.case["act"] != "f32":
            x = self._quantized(x, k)
        weight = self._weight(self.case["weight"], n, k)
        out = self.program.buffer(self._width(n))
        self.program.linear([(self.rows, self._subject())], weight, x, out, steps)
        return self._reader(out, read)

    def _epilogue(self) -> Reader:
        n = self.case["n"]
        x = self._input(self.program, n, self.rows)
        out = self.program.buffer(self._width(n))
        steps, read = self._epilogues(n, x, n)
        self.program.epilogue([(self.rows, self._subject())], x, n, out, steps)
        return self._reader(out, read)

    def _shrink(self) -> Reader:
        k = self.case["k"]
        step = self._lora(self._input(self.program, k, self.rows), k, onelora.COLUMNS, self._subject())
        zero, out = self.program.buffer(onelora.COLUMNS), self.program.buffer(onelora.COLUMNS)
        judge = self._judge("epilogue", n=onelora.COLUMNS, k=onelora.COLUMNS, epilogues=["lora"])
        self.program.epilogue([(self.rows, judge)], zero, onelora.COLUMNS, out, [step])
        return lambda rows: [("u", self.program.view(out)[:rows])]

    def _rope(self) -> Reader:
        heads, kv_heads, size = self.case["heads"], self.case["kv_heads"], self.case["head_dim"]
        k_column = _up(heads * size)
        x = self._input(self.program, k_column + kv_heads * size, self.rows)
        cos, sin = (self._normal((self.context, size // 2)) for _ in range(2))
        norms = [self._vector(size) if "rope_norm" in self.needs else None for _ in range(2)]
        self.program.rope(
            [(self.rows, self._subject())],
            x,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            k_column=k_column,
            cos=cos,
            sin=sin,
            q_norm=norms[0],
            k_norm=norms[1],
            q_scale=self._vector(self.context) if "rope_scale" in self.needs else None,
            eps=1e-5,
        )
        return lambda rows: [("q and k", self.program.view(x)[:rows])]

    def _kv_append(self) -> Reader:
        cache = self._cache()
        self._append(self.program, cache, self._subject(), self.rows)
        return lambda rows: [("cache", cache.layer(0).reshape(-1))]

    def _attention(self) -> Reader:
        heads, size = self.case["heads"], self.case["head_dim"]
        cache = self._cache()
        self._fill(cache)
        x = self._input(self.program, heads * size, self.rows)
        columns = heads * self.case.get("v_head_dim", size)
        out = self.program.buffer(columns)
        steps, read = self._epilogues(columns, x, columns)
        self.program.attention(
            [(self.rows, self._subject())],
            x,
            cache,
            0,
            out,
            heads=heads,
            window=WINDOW if "window" in self.needs else 0,
            scale=float(np.float32(1.0 / np.sqrt(size))),
            softcap=1.5 if "softcap" in self.needs else 0.0,
            mask="full" if "mask" in self.needs else "causal",
            sinks=self._normal((heads,)) if "sinks" in self.needs else None,
            slopes=self._vector(heads) / np.float32(64) if "alibi" in self.needs else None,
            epilogues=steps,
        )
        return self._reader(out, read)

    # Parts.

    def _subject(self) -> Kernel:
        if self.kernel is not None:
            return self.kernel
        rest = {name: value for name, value in self.case.items() if name not in ("op", "rows")}
        return self._judge(self.case["op"], **rest)

    def _judge(self, op: str, **fields: object) -> Kernel:
        problem = problems.problem({"op": op, "rows": self.case["rows"], **fields})
        for kernel in self.reference.kernels:
            if kernel.op == op and kernel.accepts(problem):
                return kernel
        raise NoJudgeError(f"the reference has no kernel for {problems.describe(problem)}")

    def _program(self, rows: int) -> Program:
        samples = rows if "row_gather" in self.needs else 1
        program = Program(_pool(), max_rows=rows, max_samples=samples, max_segments=2, context=self.context)
        if self.dtype is not None:
            program.open_adapters(self.dtype, columns=onelora.COLUMNS, max_ranges=onelora.RANGES)
        return program

    def _normal(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self.random.standard_normal(shape, dtype=np.float32)

    def _vector(self, n: int) -> NDArray[np.float32]:
        return np.float32(1) + self._normal((n,)) / np.float32(4)

    def _weight(self, format: str, n: int, k: int) -> Weight:
        panels, size = n // BLOCK, _native.panel_bytes(format, k)
        data = _native.Arena(panels * size, huge_pages=False)
        source = self._normal((n - 3 if n > BLOCK else n, k))  # lanes without an output are part of the case
        _native.pack(format, source, data)
        return Weight(format, len(source), k, panels, size, data)

    def _input(self, program: Program, columns: int, rows: int) -> int:
        """Return a buffer that holds random rows of different magnitude, with a group of zeros in the first."""
        source = self._normal((_up(rows), columns)) * np.exp2(np.arange(_up(rows), dtype=np.float32) % 7 - 3)[:, None]
        source[0, :64] = 0
        size = _native.panel_bytes("f32", columns)
        data = _native.Arena(_up(rows) // BLOCK * size, huge_pages=False)
        _native.pack("f32", np.ascontiguousarray(source, dtype=np.float32), data)
        weight = Weight("f32", _up(rows), columns, _up(rows) // BLOCK, size, data)
        buffer = program.buffer(columns)
        program.embed([(rows, self._judge("embed", weight="f32", n=_up(rows), k=columns))], weight, buffer)
        return buffer

    def _quantized(self, x: int, k: int) -> int:
        act = self.program.activation(k)
        judge = self._judge("epilogue", n=k, k=k, epilogues=["quantize"])
        self.program.epilogue([(self.rows, judge)], x, k, None, [Epilogue.quantize(act)])
        return act

    def _lora(self, x: int, k: int, columns: int, kernel: Kernel | None = None) -> Epilogue:
        """Add a shrink of buffer ``x``, by the judge unless ``kernel`` is given; return the step that expands it."""
        assert self.dtype is not None
        format, act = onelora.form(self.dtype)
        kernel = kernel or self._judge("shrink", weight=format, act=act, n=onelora.COLUMNS, k=k)
        source = self._quantized(x, k) if act != "f32" else x
        slot = self.program.shrink([(self.rows, kernel)], "lora", source, k=k, panels=columns // BLOCK)
        self.adapters = Adapters(self.random, self.dtype, k, columns // BLOCK)
        return Epilogue.lora(slot)

    def _width(self, columns: int) -> int:
        return columns // 2 if any(map(problems.is_gated, problems.step_names(self.case))) else columns

    def _epilogues(
        self, columns: int, x: int, k: int, *, samples: bool = False
    ) -> tuple[list[Epilogue], Callable[[int], Arrays]]:
        """Return the steps behind ``columns`` columns, and what reads their results; ``x`` (rows, k) is the input."""
        steps: list[Epilogue] = []
        acts: list[int] = []
        for step in self.case.get("epilogues", ()):
            name, a, b = (step, 1.5, 2.0) if isinstance(step, str) else step
            if name == "lora":
                steps.append(self._lora(x, k, columns))
            elif name in ("bias", "row_scale"):
                steps.append(getattr(Epilogue, name)(self._vector(columns)))
            elif name == "residual":
                steps.append(Epilogue.residual(self._input(self.program, columns, self.rows)))
            elif name == "quantize":
                acts.append(self.program.activation(columns, samples=samples))
                steps.append(Epilogue.quantize(acts[-1]))
            elif problems.is_gated(name):
                steps.append(Epilogue.gated_mul(name.removesuffix("_mul"), a, b))
                columns //= 2
            elif name in ("scale", "softcap"):
                steps.append(getattr(Epilogue, name)(a))
            elif name.startswith("mul"):
                operand = self._input(self.program, columns, self.rows)
                steps.append(Epilogue.mul(operand, name.removeprefix("mul").lstrip("_") or "identity"))
            else:
                steps.append(Epilogue.activate(name))

        def read(rows: int) -> Arrays:
            result: Arrays = []
            for act in acts:
                q, scale, sum = self.program.view_activation(act)
                result += [("q", q[:rows]), ("scale", scale[:rows]), ("sum", sum[:rows])]
            return result

        return steps, read

    def _reader(self, out: int, more: Callable[[int], Arrays]) -> Reader:
        return lambda rows: [("out", self.program.view(out)[:rows]), *more(rows)]

    def _cache(self) -> KvCache:
        return KvCache(
            self.case["kv"],
            layers=1,
            blocks=2 * _up(self.context) // BLOCK,
            kv_heads=self.case["kv_heads"],
            head_dim=self.case["head_dim"],
            v_head_dim=self.case.get("v_head_dim", 0),
        )

    def _append(self, program: Program, cache: KvCache, kernel: Kernel, rows: int) -> None:
        size = self.case["head_dim"]
        width = _up(self.case["kv_heads"] * max(size, self.case.get("v_head_dim", size)))
        x = self._input(program, 2 * width, rows)
        program.kv_append([(rows, kernel)], x, cache, 0, k_column=0, v_column=width)

    def _fill(self, cache: KvCache) -> None:
        """Give both sequences of the case a past, with the reference."""
        fields = {name: self.case[name] for name in ("kv", "kv_heads", "head_dim", "v_head_dim") if name in self.case}
        program = self._program(2 * self.context)
        self._append(program, cache, self._judge("kv_append", context=self.context, **fields), 2 * self.context)
        program.finish()
        self._step(program, [(0, self.context, 0, 0), (self.context, 2 * self.context, 0, _up(self.context) // BLOCK)])

    def _segments(self, rows: int) -> tuple[list[tuple[int, int, int, int]]]:
        """Return (begin, end, pos0, table): one sequence at the end of the context, a second near the beginning."""
        first = (rows + 1) // 2
        segments = [(0, first, self.context - first, 0)]
        if rows > first:
            segments.append((first, rows, 3, _up(self.context) // BLOCK))
        return (segments,)

    def _step(
        self,
        program: Program,
        segments: list[tuple[int, int, int, int]],
        adapters: Sequence[tuple[int, int, Any, float]] = (),
    ) -> None:
        rows = segments[-1][1]
        limit = self.case["n"] - 3 if self.case["op"] == "embed" and self.case["n"] > BLOCK else rows
        # Blocks are numbered backwards, so that a kernel that ignores the table is found out.
        tables = np.arange(2 * _up(self.context) // BLOCK, dtype=np.int32)[::-1].copy()
        if "window" in self.needs and program is self.program:
            for _, _, position, table in segments:  # what lies before the window needs no blocks
                tables[table : table + max(position - WINDOW + 1, 0) // BLOCK] = -1
        program.run(
            np.arange(rows, dtype=np.int32) % limit,
            np.concatenate([np.arange(p, p + e - b, dtype=np.int32) for b, e, p, _ in segments]),
            np.array(segments, dtype=np.int32),
            tables,
            np.arange(rows, dtype=np.int32)[::-1][: rows if "row_gather" in self.needs else 1].copy(),
            adapters,
        )


def row_counts(case: Fields) -> list[int]:
    """Return the numbers of rows to try: the ends of the range and a few between, for tails."""
    low, high = case["rows"]
    wanted = sorted({row for row in (low, low + 1, low + 3, low + 6, high) if row <= high})
    cost = case.get("n", 1) * case.get("k", 1)
    counts = [wanted[0]]
    for rows in wanted[1:]:
        if (sum(counts) + rows) * cost <= MAC_BUDGET:
            counts.append(rows)
    return counts


def _dealt(counts: list[int], dtype: str, dtypes: Sequence[str | None]) -> list[int]:
    """Return the row counts that are tried with ``dtype``: together the types need no more steps than one would."""
    own = counts[dtypes.index(dtype) :: len(dtypes)]
    return own or counts[-1:]


@cache
def _pool() -> Pool:
    return Pool(2, spin_us=0)  # two workers, so that a kernel whose tiles depend on each other is found out


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
