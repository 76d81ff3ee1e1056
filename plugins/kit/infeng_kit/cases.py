"""Awkward problems of each op, and functions that run a kernel on one and return its outputs as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, product
from typing import Any

from infeng_inspect.api import OneOp, RandomAdapters, Sequences, asked
from numpy.typing import NDArray

from infeng_core.api import Plugins, load_config
from infeng_core.api.inspection import library_states
from infeng_core.api.kernels import (
    A_FORMATS,
    CACHE_FORMATS,
    REFERENCE,
    WEIGHT_ACTS,
    Kernel,
    Library,
    Pool,
    Problem,
    a_form,
    is_gated,
    problem,
    row_ops,
    shrink_needs,
    sub_grid,
)

Fields = dict[str, Any]
"""A problem as plain data."""
Arrays = list[tuple[str, NDArray[Any]]]
FLOAT_FORMATS = tuple(name for name, act in WEIGHT_ACTS.items() if act == "f32")
INT_FORMATS = tuple(name for name, act in WEIGHT_ACTS.items() if act != "f32")
SUB_SCALED = tuple(name for name in INT_FORMATS if sub_grid(name))
OTHER_GROUPS = (("int8-row", "int8-row"), *product(SUB_SCALED, ("int8-g128", "int8-g256", "int8-row")))
"""Weight formats with each other activation than groups of 64 that their linears read."""
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
    ("lora", "residual"),
    ("lora", "bias", "silu_mul", "quantize"),
    ("bias", "scale", "residual", "quantize"),
    ("scale", "softcap"),
    ("gelu_tanh_mul", "quantize"),
    ("bias", "swiglu_mul", "quantize"),
    ("bias", "gelu_tanh", "quantize"),
    ("lora", "silu"),
)
FUNCTIONS = (("gelu",), ("bias", "gelu_mul", "quantize"), ("relu2", "quantize"), ("relu2_mul",), ("sigmoid",),
             ("sigmoid_mul",), ("mul", "residual"), ("lora", "mul_silu"), ("mul_gelu_tanh",))  # fmt: skip
"""Lists with the functions and the step that few kernels take into themselves."""
# Sequences as (rows, first position): one row, ends of blocks and of splits, several sequences, a long chunk.
SEQUENCES = (
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
    """A problem, with the rows of the step in which a kernel meets it."""

    name: str
    fields: Fields
    step: Sequences
    adapters: RandomAdapters | None = None

    @property
    def problem(self) -> Problem:
        return problem(asked(self.fields))

    def run(self, kernel: Kernel) -> tuple[bytes, ...]:
        """Return the bytes that the kernel wrote; check that it wrote nothing else."""
        found, damage = self.outputs(kernel)
        assert damage is None, f"{kernel.library}/{kernel.name}, {self.name}: {damage}"
        return tuple(array.tobytes() for _, array in found)

    def outputs(self, kernel: Kernel | None, judge: Kernel | None = None) -> tuple[Arrays, str | None]:
        """Return the arrays that a kernel wrote (None: the reference's), by name, and its first forbidden write.

        judge: the plain kernel of an op that a library describes, in place of the reference's. Raises NoJudgeError
        where the reference has no kernel for an op of the case.
        """
        pool = _pool(self.fields["workers"])
        others = () if judge is None else (judge,)
        op = OneOp(self.fields, kernel, reference(), [self.step], adapters=self.adapters, pool=pool, others=others)
        return op.run(0), op.damage


@cache
def _pool(workers: int) -> Pool:
    return Pool(workers, spin_us=0)


@cache
def reference() -> Library:
    """Return the core's reference library."""
    config = load_config(overrides={"kernels.order": [REFERENCE]}, environ={})
    found = next(state for state in library_states(Plugins.discover(config)) if state.name == REFERENCE)
    assert found.native is not None
    return found.native


def cases(op: str) -> Iterator[Case]:
    """Yield the cases of an op by its name; KeyError names an op that has none yet."""
    return row_op(op) if op in row_ops() and op not in MAKERS else MAKERS[op]()


def case(
    name: str, op: str, step: Sequences | int, *, adapters: RandomAdapters | None = None, **fields: object
) -> Case:
    step = [(step, 0)] if isinstance(step, int) else step
    rows = sum(count for count, _ in step)
    if adapters and (needs := shrink_needs(adapters.storage)):  # older kernels know the other storages
        fields["needs"] = needs
    return Case(name, {"op": op, "rows": [rows, rows], "workers": 2, **fields}, step, adapters)


def steps(names: tuple[str, ...]) -> Fields:
    return {"epilogues": list(names)} if names else {}


def linear() -> Iterator[Case]:
    shapes = [(rows, n, k) for k in K for rows, n in ((1, 48), (4, 176), (7, 48), (13, 256), (70, 112))]
    shapes += [(rows, 160, 192) for rows in (2, 3, 5, 6, 8, 11, 12, 25, 129, 300)]
    shapes += [(rows, 48, 192) for rows in (5, 6, 16)] + [(1000, 48, 64)]
    storages = cycle(A_FORMATS)
    for fmt in FLOAT_FORMATS + INT_FORMATS:
        for i, (rows, n, k) in enumerate(shapes):
            names = LISTS[i % len(LISTS)]
            n = -(-n // 32) * 32 if any(map(is_gated, names)) else n
            sizes = {"weight": fmt, "act": "int8-g64" if fmt in INT_FORMATS else "f32", "n": n, "k": k}
            adapters = RandomAdapters(next(storages)) if "lora" in names else None
            name = f"{fmt}-{rows}x{n}x{k}-{'+'.join(names) or 'plain'}"
            yield case(name, "linear", rows, adapters=adapters, **sizes, **steps(names))
    for fmt, act in OTHER_GROUPS:
        for rows, k in ((1, 896), (4, 576), (7, 172), (13, 1216), (29, 576), (70, 896), (150, 320)):
            name = f"{fmt}-{act}-{rows}x112x{k}"
            yield case(name, "linear", rows, weight=fmt, act=act, n=112, k=k, **steps(("residual",)))
    for i, (fmt, listed) in enumerate(product(FLOAT_FORMATS + INT_FORMATS, FUNCTIONS)):
        act = "int8-g64" if fmt in INT_FORMATS else "f32"
        adapters = RandomAdapters("int8t4") if "lora" in listed else None
        sizes = {"weight": fmt, "act": act, "n": 160, "k": 72, **steps(listed)}
        yield case(f"{fmt}-{1 + i % 9}x160x72-{'+'.join(listed)}", "linear", 1 + i % 9, adapters=adapters, **sizes)
    yield from linear_over_tiles()
    yield from linear_in_wide_groups()


def linear_over_tiles() -> Iterator[Case]:
    """Yield cases of more rows than kernels take at a time in which a call does several tiles.

    What a kernel keeps of rows in scratch from tile to tile must not be that of others. One worker is given eight tiles
    in twos; fewer tiles, or those of more workers, go one by one.
    """
    for fmt, act in (*WEIGHT_ACTS.items(), *OTHER_GROUPS):
        sizes: Fields = {"weight": fmt, "act": act, "n": 8 * 64, "k": 320, "workers": 1}
        yield case(f"{fmt}-{act}-over-tiles", "linear", 280, **sizes)


def linear_in_wide_groups() -> Iterator[Case]:
    """Yield cases that round into groups of 64, 128 and 256, with a tail, and several tiles of a call."""
    lists = (("silu_mul",), ("bias",), ("lora", "bias", "swiglu_mul"), ("row_scale", "residual"))
    for i, fmt in enumerate(FLOAT_FORMATS + INT_FORMATS):
        act = "int8-g64" if fmt in INT_FORMATS else "f32"
        for j, columns in enumerate((176, 192, 256, 320, 704)):
            names = lists[(i + j) % len(lists)]
            n = 2 * columns if any(map(is_gated, names)) else columns
            adapters = RandomAdapters("int8") if "lora" in names else None
            sizes = {"weight": fmt, "act": act, "n": n, "k": 72, **steps((*names, "quantize_wide"))}
            rows = (1, 3, 9, 70, 150)[(2 * i + j) % 5]
            yield case(f"{fmt}-{rows}-{'+'.join(names)}-wide{columns}", "linear", rows, adapters=adapters, **sizes)
    for fmt in ("int4-p32", "int8-row", "bf16"):
        sizes = {"weight": fmt, "act": WEIGHT_ACTS[fmt], "n": 4096, "k": 64, "workers": 1}
        yield case(f"{fmt}-wide-over-tiles", "linear", 280, **sizes, **steps(("silu_mul", "quantize_wide")))


def linear_of(format: str, act: str) -> Iterator[Case]:
    """Yield cases of a weight format that a library brings, whose linears read ``act``."""
    shapes = [(rows, n, k) for k in K for rows, n in ((1, 48), (7, 176), (16, 48))] + [(130, 112, 192)]
    for i, (rows, n, k) in enumerate(shapes):
        for names in ((), LISTS[i % len(LISTS)]):
            wide = -(-n // 32) * 32 if any(map(is_gated, names)) else n
            adapters = RandomAdapters("bf16") if "lora" in names else None
            sizes = {"weight": format, "act": act, "n": wide, "k": k}
            name = f"{format}-{rows}x{wide}x{k}-{'+'.join(names) or 'plain'}"
            yield case(name, "linear", rows, adapters=adapters, **sizes, **steps(names))


def embed() -> Iterator[Case]:
    for fmt in FLOAT_FORMATS + INT_FORMATS:
        for k in K:
            yield case(f"{fmt}-{k}", "embed", 50, weight=fmt, n=64, k=k)


def rmsnorm() -> Iterator[Case]:
    for k in (*K, 2048):
        for rows in (1, 65):
            for names in ((), ("quantize",), ("quantize_wide",), ("quantize_row",)):
                for gather in (False, True):
                    name = f"{rows}x{k}-{'+'.join(names) or 'plain'}{'-gather' if gather else ''}"
                    yield case(name, "rmsnorm", rows, n=k, k=k, gather=gather, **steps(names))
            for needs in (["norm_heads"], ["norm_offset"], ["norm_heads", "norm_offset"]):
                yield case(f"{rows}x{k}-{'+'.join(needs)}", "rmsnorm", rows, n=k, k=k, needs=needs)


def epilogue() -> Iterator[Case]:
    storages = cycle(("bf16", "int8t4"))
    for n in (64, 176, 352, 576, 896):
        rounded = [(*names, step) for step in ("quantize_wide", "quantize_row") for names in ((), ("lora", "silu_mul"))]
        for names in (*LISTS[1:], *rounded, *FUNCTIONS):
            if not any(map(is_gated, names)) or n % 32 == 0:
                adapters = RandomAdapters(next(storages)) if "lora" in names else None
                yield case(f"{n}-{'+'.join(names)}", "epilogue", 5, adapters=adapters, n=n, k=n, **steps(names))


def row_op(op: str) -> Iterator[Case]:
    operands = {operand.kind for operand in row_ops()[op]}
    for n in (*K, 2048):
        for rows in (1, 5, 65):
            for names in ((), ("quantize",), ("quantize_wide",), ("quantize_row",)):
                for gather in (False, True)[: 2 if "row_index" in operands else 1]:
                    name = f"{rows}x{n}-{'+'.join(names) or 'plain'}{'-gather' if gather else ''}"
                    yield case(name, op, rows, n=n, k=n, gather=gather, **steps(names))


def rope() -> Iterator[Case]:
    for dim, rot in ((8, 8), (64, 64), (80, 64), (96, 96), (128, 128), (256, 64)):
        for needs in ([], ["rope_norm"], ["rope_norm", "rope_scale"]):
            sizes: Fields = {"heads": 3, "kv_heads": 2, "head_dim": dim, "context": 40, "rot": rot, "needs": needs}
            yield case("-".join([f"{dim}-{rot}", *needs]), "rope", ((8, 0), (1, 39)), **sizes)


def kv_append() -> Iterator[Case]:
    for kv in CACHE_FORMATS:
        for dim in (8, 64, 80, 96, 128, 256):
            for i in (0, 5, 8):
                yield case(f"{kv}-{dim}-{i}", "kv_append", SEQUENCES[i], kv=kv, kv_heads=2, head_dim=dim, context=720)


def attention() -> Iterator[Case]:
    heads = ((8, 8), (64, 1), (64, 8), (80, 3), (96, 2), (128, 4), (128, 7), (256, 5))  # head size, heads per kv head
    for kv in CACHE_FORMATS:
        for i, step in enumerate(SEQUENCES):
            for j, (dim, shared) in enumerate(heads):
                if "h" in kv and (i + j) % 3:  # those with a rotation share their loops with the others
                    continue
                if sum(rows for rows, _ in step) < 50 or (i + j) % 4 == 0:
                    window, kv_heads = (0, 0, 33, 300)[(i + j) % 4], 1 + j % 2
                    names = ("quantize",) if dim % 64 == 0 and window else ()
                    sizes: Fields = {"heads": kv_heads * shared, "kv_heads": kv_heads, "head_dim": dim, "context": 720}
                    name = f"{kv}-{i}-{dim}-{shared}-window{window}"
                    yield case(name, "attention", step, kv=kv, window=window, **sizes, **steps(names))
                    if j % 2 == 0:
                        bent: Fields = {"needs": [["softcap"], ["sinks"], ["sinks", "softcap"]][i % 3]}
                        yield case(f"{name}-bent", "attention", step, kv=kv, window=window, **bent, **sizes)
            for j, (dim, shared, kv_heads) in enumerate(((64, 4, 2), (128, 4, 1), (256, 2, 1), (64, 8, 1), (64, 3, 1))):
                if (i + j) % 4 == 0:  # columns in groups of 256, and heads that do not fill them
                    sizes = {"heads": kv_heads * shared, "kv_heads": kv_heads, "head_dim": dim, "context": 720}
                    sizes |= steps(("quantize_wide",))
                    yield case(f"{kv}-{i}-{dim}-{shared}-wide", "attention", step, kv=kv, **sizes)


def shrink() -> Iterator[Case]:
    shapes = [(rows, k) for k in K for rows in (1, 4, 19)] + [(70, 192), (130, 64)]
    for storage in A_FORMATS:
        weight, act = a_form(storage)
        has_tails = storage == "int8t4"  # whose ranks are multiples of 8
        rank, parts = (8, 3) if has_tails else (17, 2)
        many = RandomAdapters(storage, count=3, rank=rank, parts=((0, 1, 1),) * parts)
        for rows, k in shapes:
            for name, adapters in (("two", RandomAdapters(storage)), ("many", many)):
                sizes = {"weight": weight, "act": act, "n": 96, "k": k}
                yield case(f"{storage}-{rows}x{k}-{name}", "shrink", rows, adapters=adapters, **sizes)


def route() -> Iterator[Case]:
    for experts, chosen in ((1, 1), (8, 2), (60, 4), (64, 64), (128, 8), (520, 10)):
        for act in ("f32", "int8-g64"):
            for rows, k in ((1, 64), (3, 172), (65, 576)):
                name = f"{rows}x{k}-{act}-{chosen}of{experts}"
                yield case(name, "route", rows, act=act, k=k, experts=experts, top_k=chosen)


def combine() -> Iterator[Case]:
    lists = ((), ("residual",), ("scale", "residual"), ("quantize",), ("row_scale", "bias", "softcap", "quantize"))
    for n in K:
        for rows, chosen in ((1, 8), (4, 1), (65, 3), (7, 64)):
            for names in lists:
                name = f"{rows}x{n}-{chosen}-{'+'.join(names) or 'plain'}"
                yield case(name, "combine", rows, n=n, k=n, top_k=chosen, **steps(names))


MAKERS = {
    "embed": embed,
    "rmsnorm": rmsnorm,
    "linear": linear,
    "epilogue": epilogue,
    "rope": rope,
    "kv_append": kv_append,
    "attention": attention,
    "shrink": shrink,
    "route": route,
    "combine": combine,
}
