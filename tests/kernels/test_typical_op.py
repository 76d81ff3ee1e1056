"""The cases of `make bench`: every kernel of every library on typical problems, with correct counts of work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from infeng_inspect import operands
from kernels import typical_op
from kernels.typical_op import CONTEXT

from infeng_core import _native as native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins
from infeng_core.settings.config import OPS

POOL = native.Pool(2, spin_us=0)
PLUGINS = Plugins.discover()


def kernels() -> Iterator[native.Kernel]:
    for library in libraries(PLUGINS):
        usable = (kernel for kernel in library.kernels if set(kernel.features) <= PLUGINS.cpu.features)
        yield from (kernel for kernel in usable if not kernel.name.endswith("_foreign"))  # no model brings a format


def accepted(kernel: native.Kernel, rows: int) -> list[dict[str, object]]:
    return [
        fields
        for fields in typical_op.cases(kernel.op)
        if kernel.accepts(typical_op.problem(fields, rows, POOL.threads))
    ]


@pytest.mark.parametrize("kernel", list(kernels()), ids=lambda kernel: f"{kernel.library}/{kernel.name}")
def test_every_kernel_of_an_op_has_a_typical_case_that_runs(
    kernel: native.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operands, "LARGE", 0)  # few panels, repeated
    rows, fields = next((rows, found[-1]) for rows in (1, 4, 16, 128) if (found := accepted(kernel, rows)))
    made = typical_op.build(fields, kernel, rows, POOL)
    made.once()
    macs, nbytes = made.work()
    assert (macs > 0) == (kernel.op in ("linear", "attention", "shrink"))
    assert (nbytes > 0) == (kernel.op in ("linear", "attention", "kv_append", "shrink"))


def test_names_are_unique_and_cover_every_op() -> None:
    found = list(typical_op.all_cases())
    names = [typical_op.key(fields) for fields in found]
    assert len(set(names)) == len(names)
    assert {fields["op"] for fields in found} == set(OPS)
    assert {fields["weight"] for fields in found if fields["op"] == "linear"} == set(typical_op.FORMATS)
    shapes = {(fields["n"], fields["k"]) for fields in found if fields.get("weight") == "int4-p32"}
    assert {(2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632), (32000, 2048)} <= shapes


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_attention_reads_the_whole_context(rows: int) -> None:
    [fields] = [fields for fields in typical_op.cases("attention") if fields["kv"] == "f32"][:1]
    problem = typical_op.problem(fields, rows, POOL.threads)
    reference = next(library for library in libraries(PLUGINS) if library.name == "reference")
    kernel = next(kernel for kernel in reference.kernels if kernel.op == "attention" and kernel.accepts(problem))
    made = typical_op.build(fields, kernel, rows, POOL)
    macs, nbytes = made.work()
    seen = rows * CONTEXT if rows <= 16 else sum(range(CONTEXT - rows + 1, CONTEXT + 1))
    assert macs == 2 * 32 * 64 * seen
    block = native.KvCache.bytes_per_block("f32", layers=1, kv_heads=4, head_dim=64)
    assert nbytes == (rows if rows <= 16 else 1) * CONTEXT // 16 * block


def test_a_weight_s_panels_all_hold_packed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"op": "linear", "weight": "int4-g64", "act": "int8-g64", "n": 176, "k": 128}
    reference = next(library for library in libraries(PLUGINS) if library.name == "reference")
    kernel = next(k for k in reference.kernels if k.accepts(typical_op.problem(fields, 1, 2)))
    monkeypatch.setattr(operands, "LARGE", 0)
    out = dict(typical_op.build(fields, kernel, 1, POOL).run(0))["out"]
    assert np.array_equal(out[0, :64], out[0, 112:])  # seven panels, repeated
    assert (out[0] != 0).all()


@pytest.mark.parametrize("op", ["linear", "shrink"])
def test_adapters_are_on_every_row(op: str) -> None:
    fields = next(f for f in typical_op.cases(op) if op == "shrink" or "lora" in f.get("epilogues", ()))
    reference = next(library for library in libraries(PLUGINS) if library.name == "reference")
    problem = typical_op.problem(fields, 6, POOL.threads)
    kernel = next(kernel for kernel in reference.kernels if kernel.accepts(problem))
    made = typical_op.build(fields, kernel, 6, POOL)
    assert [(begin, end) for begin, end, _, _ in made._ranges[0]] == [(0, 1), (1, 3), (3, 4), (4, 6)]
    u = made.program.view(0)  # u, the first value of programs with adapters
    assert not u.any()
    made.once()
    assert u[:, : typical_op.RANK].any(axis=1).all()
