"""Typical problems of every op on TinyLlama-1.1B's shapes, and a program of one kernel on one of them, to be timed.

The problems are those that the engine's planner poses (``infeng_inspect.outline``), in every weight format
and cache format that is installed. Matrices that the engine would not use are left out: formats other than the default
are represented by one shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from infeng_inspect.case import OneOp
from infeng_inspect.lora import RandomAdapters
from infeng_inspect.outline import TINYLLAMA, Outline, shape_and_formats
from kernels.harness import reference

from infeng_core import _native as native
from infeng_core.formats.lookup import format_lookup
from infeng_core.formats.quant import builtin_format
from infeng_core.kernels import problems
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.storages import A_FORMATS
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import BACKENDS
from infeng_core.plug.manager import Plugins
from infeng_core.scheduling.limits import limits_of
from infeng_core.settings.config import OPS, SCHEMA

FORMATS = tuple(native.WEIGHT_FORMATS)
CONTEXT = 1024
SHAPE = replace(TINYLLAMA, layers=1, max_positions=CONTEXT)
SMALL = 1 << 22  # multiply-adds or elements below which one op is too short to be timed alone
RANK = 16  # of adapters, which share the rows of a step
MOST_ADAPTERS = 4
MOST_SEQUENCES = 16  # more rows than that are a chunk of one prompt


@cache
def posed(**overrides: object) -> list[problems.Fields]:
    """Return all problems of the planner for SHAPE with the reference, without the number of rows."""
    names = {name.replace("__", "."): value for name, value in overrides.items()}
    config = load_config(overrides={"kernels.order": "reference", "model.formats": "", **names})
    plugins = Plugins.discover(config)
    selector = Selector(plugins, config, plugins.cpu)
    _, formats = shape_and_formats(None, config, format_lookup(plugins))
    limits, _ = limits_of(config, SHAPE, plugins.get(BACKENDS, "native"))
    asked = Outline(SHAPE, formats, format_lookup(plugins), config, selector, limits).bound().asked
    found = {key(problems.fields(problem)): problems.fields(problem) for problem in asked}
    return [{name: value for name, value in fields.items() if name != "rows"} for fields in found.values()]


def cases(op: str) -> list[problems.Fields]:
    """Return the problems of ``op`` in a model, without the number of rows."""
    found: dict[str, problems.Fields] = {}
    for storage in A_FORMATS if op == "shrink" else ():
        found |= {key(fields): fields for fields in posed(adapters__dtype=storage) if fields["op"] == op}
    for weight in FORMATS if op != "shrink" else ():
        default = load_config()
        is_default = weight == builtin_format(default.model.format).stored
        every = SCHEMA["kv_cache"]["dtype"].metadata["kind"].words
        name = default.model.format if is_default else weight
        # What attention hands on depends on whether activations are rounded, and no more on the weights.
        for kv in every if is_default or weight == "f32" else (default.kv_cache.dtype,):
            asked = [
                fields
                for fields in posed(model__format=name, kv_cache__dtype=kv, adapters__max_resident=0)
                if fields["op"] == op
            ]
            if op == "linear" and not is_default:  # down_proj: the longest sums, and a residual
                asked = [fields for fields in asked if fields["k"] == SHAPE.intermediate]
            if op == "linear" and is_default:
                asked += [fields | {"epilogues": ["lora", *fields.get("epilogues", ())]} for fields in asked]
            found |= {key(fields): fields for fields in asked}
    if op == "epilogue":  # what other kernels may leave to it
        n = {"n": SHAPE.hidden, "k": SHAPE.hidden}
        found |= {f"{op}+{name}": {"op": op, **n, "epilogues": [name]} for name in ("residual", "quantize")}
    if op in ("route", "combine"):  # of a mixture of experts, which this model is not
        sizes = {"n": SHAPE.hidden} if op == "combine" else {"act": "int8-g64", "experts": 128}
        found[op] = {"op": op, **sizes, "k": SHAPE.hidden, "top_k": 8}
    if op in native.row_ops() and not found:  # no model poses it yet
        found[op] = {"op": op, "n": SHAPE.hidden, "k": SHAPE.hidden}
    return list(found.values())


def all_cases() -> Iterator[problems.Fields]:
    """Yield the cases of all ops."""
    for op in OPS:
        yield from cases(op)


def key(fields: problems.Fields) -> str:
    """Return a name for a problem, of words that a command line can select: ``linear-int4-g64-2048x5632+residual``."""
    formats = [fields[name] for name in ("weight", "kv") if name in fields]
    shape = [f"{fields['n']}x{fields['k']}"] if "n" in fields else []
    shape += [f"{fields['heads']}heads"] if "heads" in fields else []
    return "-".join([fields["op"], *formats, *shape]) + "".join(f"+{name}" for name in fields.get("epilogues", ()))


def problem(fields: problems.Fields, rows: int, threads: int) -> native.Problem:
    """Return the problem of a case for batches of exactly ``rows``."""
    return problems.problem({**fields, "rows": [rows, rows], "workers": threads})


def build(fields: problems.Fields, kernel: native.Kernel, rows: int, pool: native.Pool) -> OneOp:
    """Return a program of ``kernel`` on a case, often enough for a time worth measuring.

    Up to 16 rows are sequences of 1,024 positions that decode; more are the last rows of a prompt as long.
    """
    step = [(1, CONTEXT - 1)] * rows if rows <= MOST_SEQUENCES else [(rows, CONTEXT - rows)]
    adapters = None
    if fields["op"] == "shrink" or "lora" in fields.get("epilogues", ()):
        storage = fields["weight"] if fields["op"] == "shrink" and fields["act"] == "f32" else "int8"
        adapters = RandomAdapters(storage, count=MOST_ADAPTERS, rank=RANK, is_looked_up=fields["op"] != "shrink")
    return OneOp(
        {**fields, "rows": [1, rows]},
        kernel,
        reference(),
        [step],
        adapters=adapters,
        pool=pool,
        calls=1 if adapters and adapters.is_looked_up else int(np.clip(SMALL // (rows * elements(fields)), 1, 64)),
    )


def elements(fields: problems.Fields) -> int:
    """Return the multiply-adds or elements of one row."""
    if fields["op"] in ("rope", "kv_append", "attention"):
        heads = fields["kv_heads"] + fields.get("heads", fields["kv_heads"])
        return int(heads * fields["head_dim"] * (CONTEXT if fields["op"] == "attention" else 1))
    outputs = {"linear": fields.get("n"), "shrink": RANK}.get(fields["op"], 1)
    return int(fields["k"] * outputs)
