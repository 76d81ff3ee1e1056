"""For each op: awkward problems, and how to run one kernel on one of them. The result is a tuple of byte strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from kernels import abi_mirror as abi
from kernels import adapters
from kernels.harness import FLOAT_FORMATS, INT_FORMATS, OneOp, packed, panels_for, random_rows
from numpy.typing import NDArray

from infeng_core import _native as native
from infeng_core.plug.manager import Plugins

Run = Callable[[native.Kernel], tuple[bytes, ...]]

K = (8, 64, 172, 576, 896)
LISTS = (
    (),
    ("bias",),
    ("residual",),
    ("bias", "residual"),
    ("silu_mul",),
    ("silu_mul", "quantize"),
    ("bias", "silu_mul", "quantize"),
    ("bias", "quantize"),
    ("row_scale", "bias", "residual", "quantize"),
)
# Segments as (rows, first position): one row, ends of blocks and of splits, several sequences, a long chunk.
SEGMENTS = (
    ((1, 0),),
    ((1, 255),),
    ((1, 256),),
    ((1, 700),),
    ((5, 253),),
    ((1, 40), (1, 300), (1, 17)),
    ((8, 509),),
    ((7, 3), (1, 600)),
    ((40, 250), (1, 77), (20, 0)),
    ((290, 20),),
)


@dataclass(frozen=True)
class Case:
    """A problem and a function that runs a kernel on it."""

    name: str
    problem: native.Problem
    run: Run


def cases(op: str) -> Iterator[Case]:
    """Yield the cases of an op by its name; KeyError names an op that has none yet."""
    return MAKERS[op]()


# ------------------------------------------------------------------------------------------------------- epilogues


def epilogue_list(op: OneOp, names: tuple[str, ...], columns: int) -> tuple[list[native.Epilogue], int, int | None]:
    """Return (list, columns of the result, activation that quantize writes or None) for a result of ``columns``."""
    made: list[native.Epilogue] = []
    act = None
    for name in names:
        if name == "silu_mul":
            columns //= 2
            made.append(native.Epilogue.silu_mul())
        elif name == "residual":
            made.append(native.Epilogue.residual(op.input(random_rows(11, op.rows, columns))))
        elif name == "quantize":
            act = op.program.activation(columns)
            made.append(native.Epilogue.quantize(act))
        else:
            made.append(getattr(native.Epilogue, name)(random_rows(12, 1, columns)[0]))
    return made, columns, act


def results(op: OneOp, out: int | None, act: int | None = None) -> tuple[bytes, ...]:
    """Return the bytes of a buffer, of an activation, or of both."""
    found = [] if out is None else [op.result(out).tobytes()]
    if act is not None:
        found += [part.tobytes() for part in op.result_activation(act)]
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------- ops


@cache
def weight(fmt: str, n: int, k: int) -> native.Weight:
    return packed(fmt, random_rows(n + k, n, k))


def random_activation(rows: int, k: int) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]]:
    """int8 rows of which some groups are zero and some hold nothing but the extremes."""
    rng = np.random.default_rng(rows * k)
    groups = -(-k // 64)
    q = rng.integers(-127, 128, (rows, groups, 64)).astype(np.int8)
    style = rng.integers(0, 8, (rows, groups))
    q[style == 0] = 0
    q[style == 1] = 127
    q[style == 2] = -127
    q.reshape(rows, -1)[:, k:] = 0
    scale = np.abs(rng.standard_normal((rows, groups)) * 0.02).astype(np.float32)
    return q.reshape(rows, -1), np.where(style == 0, np.float32(0), scale), q.sum(axis=2, dtype=np.int32)


def linear() -> Iterator[Case]:
    shapes = [(rows, n, k) for k in K for rows, n in ((1, 48), (4, 172), (7, 40), (13, 256), (70, 100))]
    shapes += [(rows, 160, 192) for rows in (2, 3, 5, 6, 8, 11, 12, 25, 129, 300)] + [(1000, 40, 64)]
    for fmt in FLOAT_FORMATS + INT_FORMATS:
        for i, (rows, n, k) in enumerate(shapes):
            names = LISTS[i % len(LISTS)]
            outputs = -(-n // 32) * 32 if "silu_mul" in names else n
            yield linear_case(fmt, rows, outputs, k, names)


def linear_case(fmt: str, rows: int, n: int, k: int, names: tuple[str, ...]) -> Case:
    integer = fmt in INT_FORMATS
    act = "int8-g64" if integer else "f32"
    columns = panels_for(n) * 16

    def run(kernel: native.Kernel) -> tuple[bytes, ...]:
        op = OneOp(rows, threads=2, context=rows)
        epilogues, width, quantized = epilogue_list(op, names, columns)
        x = op.input_activation(random_activation(rows, k), k) if integer else op.input(random_rows(5, rows, k))
        out = op.output(width)
        op.program.linear(op.bind(kernel), weight(fmt, n, k), x, out, epilogues)
        op.run()
        return results(op, out, quantized)

    problem = native.Problem(
        "linear", weight=fmt, act=act, epilogues=names, rows=(rows, rows), n=columns, k=k, workers=2
    )
    return Case(f"{fmt}-{rows}x{n}x{k}-{'+'.join(names) or 'plain'}", problem, run)


def embed() -> Iterator[Case]:
    for fmt in FLOAT_FORMATS + INT_FORMATS:
        for k in K:

            def run(kernel: native.Kernel, fmt: str = fmt, k: int = k) -> tuple[bytes, ...]:
                op = OneOp(50)
                out = op.output(k)
                op.program.embed(op.bind(kernel), weight(fmt, 50, k), out)
                op.run(tokens=range(50))
                return results(op, out)

            yield Case(f"{fmt}-{k}", native.Problem("embed", weight=fmt, rows=(50, 50), n=64, k=k), run)


def rmsnorm() -> Iterator[Case]:
    for k in (*K, 2048):
        for rows in (1, 65):
            for names in ((), ("quantize",)):

                def run(
                    kernel: native.Kernel, k: int = k, rows: int = rows, names: tuple[str, ...] = names
                ) -> tuple[bytes, ...]:
                    op = OneOp(rows, threads=2, context=rows)
                    epilogues, _, act = epilogue_list(op, names, k)
                    out = op.output(k)
                    op.program.rmsnorm(
                        op.bind(kernel),
                        op.input(random_rows(3, rows, k)),
                        random_rows(4, 1, k)[0],
                        1e-5,
                        out,
                        epilogues,
                    )
                    op.run()
                    return results(op, out, act)

                yield Case(
                    f"{rows}x{k}-{'+'.join(names) or 'plain'}",
                    native.Problem("rmsnorm", epilogues=names, rows=(rows, rows), k=k),
                    run,
                )


def epilogue() -> Iterator[Case]:
    for n in (64, 172, 352, 576, 896):
        for names in LISTS[1:]:
            if "silu_mul" in names and n % 32:
                continue

            def run(kernel: native.Kernel, n: int = n, names: tuple[str, ...] = names) -> tuple[bytes, ...]:
                op = OneOp(5, threads=2)
                epilogues, width, act = epilogue_list(op, names, n)
                out = op.output(width)
                op.program.epilogue(op.bind(kernel), op.input(random_rows(8, 5, n)), n, out, epilogues)
                op.run()
                return results(op, out, act)

            yield Case(f"{n}-{'+'.join(names)}", native.Problem("epilogue", epilogues=names, rows=(5, 5), n=n), run)


def rope() -> Iterator[Case]:
    for dim, rot in ((8, 8), (64, 64), (80, 64), (96, 96), (128, 128), (256, 64)):

        def run(kernel: native.Kernel, dim: int = dim, rot: int = rot) -> tuple[bytes, ...]:
            tables = native.rope_tables(native.rope_inv_freq(rot, 10000.0).astype(np.float32), 40)
            op = OneOp(9, threads=2, positions=[*range(8), 39])
            k_column = panels_for(3 * dim) * 16
            x = op.input(random_rows(6, 9, k_column + 2 * dim))
            op.program.rope(
                op.bind(kernel), x, heads=3, kv_heads=2, head_dim=dim, k_column=k_column, cos=tables[0], sin=tables[1]
            )
            op.run()
            return results(op, x)

        yield Case(f"{dim}-{rot}", native.Problem("rope", rows=(9, 9), heads=3, kv_heads=2, head_dim=dim), run)


# ----------------------------------------------------------------------------------------------------------- cache


class Layout:
    """Segments over a cache whose blocks are in random order."""

    def __init__(self, shape: tuple[tuple[int, int], ...], kv: str, kv_heads: int, dim: int) -> None:
        needed = [-(-(pos0 + rows) // 16) for rows, pos0 in shape]
        self.blocks = sum(needed)
        self.tables = np.random.default_rng(1).permutation(self.blocks).tolist()
        self.segments, self.positions, row, table = [], [], 0, 0
        for (rows, pos0), blocks in zip(shape, needed, strict=True):
            self.segments.append((row, row + rows, pos0, table))
            self.positions += range(pos0, pos0 + rows)
            row += rows
            table += blocks
        self.rows, self.context = row, max(pos0 + rows for rows, pos0 in shape)
        self.kv, self.kv_heads, self.dim = kv, kv_heads, dim

    def cache(self) -> native.KvCache:
        return native.KvCache(self.kv, layers=1, blocks=self.blocks, kv_heads=self.kv_heads, head_dim=self.dim)

    def op(self) -> OneOp:
        return OneOp(
            self.rows,
            threads=2,
            context=self.context,
            positions=self.positions,
            segments=self.segments,
            block_tables=self.tables,
        )

    def fields(self) -> dict[str, object]:
        return {
            "kv": self.kv,
            "rows": (self.rows, self.rows),
            "kv_heads": self.kv_heads,
            "head_dim": self.dim,
            "context": self.context,
            "workers": 2,
        }


def kv_append() -> Iterator[Case]:
    for kv in ("f32", "f16", "int8"):
        for dim in (8, 64, 80, 96, 128, 256):
            for i in (0, 5, 8):
                layout = Layout(SEGMENTS[i], kv, 2, dim)

                def run(kernel: native.Kernel, layout: Layout = layout) -> tuple[bytes, ...]:
                    op, kv_cache, width = layout.op(), layout.cache(), layout.kv_heads * layout.dim
                    x = op.input(random_rows(9, layout.rows, 2 * width))
                    op.program.kv_append(op.bind(kernel), x, kv_cache, 0, k_column=0, v_column=width)
                    op.run()
                    return (kv_cache.layer(0).tobytes(),)

                yield Case(f"{kv}-{dim}-{i}", native.Problem("kv_append", **layout.fields()), run)


def fill(kv_cache: native.KvCache, kv: str, dim: int) -> None:
    """Put random keys, values and scales into every slab."""
    rng = np.random.default_rng(2)
    slabs = kv_cache.layer(0)
    if kv == "f32":
        slabs.view(np.float32)[:] = rng.standard_normal(slabs.view(np.float32).shape)
        return
    if kv == "f16":
        slabs.view(np.float16)[:] = rng.standard_normal(slabs.view(np.float16).shape)
        return
    scales = slabs[..., -128:].view(np.float32)
    slabs[:] = rng.integers(1, 256, slabs.shape, dtype=np.uint8)
    v = slabs[..., 16 * dim : 32 * dim]
    v[v == 128] = 0
    scales[:] = np.abs(rng.standard_normal(scales.shape)) * 0.02


def attention() -> Iterator[Case]:
    heads = ((8, 8), (64, 1), (64, 8), (80, 3), (96, 2), (128, 4), (128, 7), (256, 5))  # head size, heads per kv head
    for kv in ("f32", "f16", "int8"):
        for i, shape in enumerate(SEGMENTS):
            for j, (dim, shared) in enumerate(heads):
                if sum(rows for rows, _ in shape) < 50 or (i + j) % 4 == 0:
                    yield attention_case(
                        Layout(shape, kv, 1 + j % 2, dim),
                        shared,
                        window=(0, 0, 33, 300)[(i + j) % 4],
                        name=f"{kv}-{i}-{dim}-{shared}",
                    )


def attention_case(layout: Layout, shared: int, window: int, name: str) -> Case:
    heads, dim = layout.kv_heads * shared, layout.dim
    names = ("quantize",) if dim % 64 == 0 and window else ()

    def run(kernel: native.Kernel) -> tuple[bytes, ...]:
        op, kv_cache = layout.op(), layout.cache()
        fill(kv_cache, layout.kv, dim)
        epilogues, width, act = epilogue_list(op, names, heads * dim)
        out = op.output(width)
        q = op.input(random_rows(10, layout.rows, width))
        op.program.attention(
            op.bind(kernel), q, kv_cache, 0, out, heads=heads, window=window, scale=dim**-0.5, epilogues=epilogues
        )
        op.run()
        return results(op, out, act)

    needs = ["window"] if window else []
    problem = native.Problem("attention", heads=heads, epilogues=names, needs=needs, **layout.fields())
    return Case(f"{name}-window{window}", problem, run)


# ------------------------------------------------------------------------------------------------------------ LoRA


PATHS = {library.name: library.path for library in Plugins.discover().libraries()}


@cache
def direct(library: str) -> dict[str, abi.Kernel]:
    """Return a library's kernels as functions to call."""
    return abi.open_kernels(PATHS[library])


def shrink() -> Iterator[Case]:
    shapes = [(rows, k) for k in K for rows in (1, 4, 19)] + [(70, 192), (130, 64)]
    for dtype, fmt in adapters.FORMAT.items():
        for rows, k in shapes:

            def run(kernel: native.Kernel, dtype: str = dtype, rows: int = rows, k: int = k) -> tuple[bytes, ...]:
                column, made = 0, []
                for i, rank in enumerate((8, 17, 64, 1)):
                    made.append(adapters.Adapter(dtype, rank, 30 + i, column, weight=1 - i / 4, k=k))
                    column += -(-rank // 16) * 16
                ends = ((0, rows), (0, rows // 2), (rows // 3, rows), (rows - 1, rows))
                segments = [each.segment(*rows_of) for each, rows_of in zip(made, ends, strict=True)]
                x = random_rows(13, rows, k)
                return (adapters.shrink(direct(kernel.library)[kernel.name], x, segments, column).tobytes(),)

            act = "int8-g64" if dtype == "int8" else "f32"
            problem = native.Problem("shrink", weight=fmt, act=act, rows=(rows, rows), n=96, k=k, workers=2)
            yield Case(f"{dtype}-{rows}x{k}", problem, run)


MAKERS = {
    "embed": embed,
    "rmsnorm": rmsnorm,
    "linear": linear,
    "epilogue": epilogue,
    "rope": rope,
    "kv_append": kv_append,
    "attention": attention,
    "shrink": shrink,
}
