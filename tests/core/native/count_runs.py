"""Run by test_no_allocation.py under count_malloc.c: prints the allocations of one run of several programs as JSON."""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from infeng_core import _native

sys.path.insert(0, str(Path(__file__).parent))
from tiny import Tiny

counter, toy_path, reference_path = sys.argv[1:]
allocations = ctypes.CDLL(counter).allocations
allocations.restype = ctypes.c_long
toy = {kernel.name: kernel for kernel in _native.open_library(toy_path).kernels}
reference = {kernel.name: kernel for kernel in _native.open_library(reference_path).kernels}
NONE = np.zeros(0, np.int32)
F32 = np.float32


def per_run(program, *arrays):
    """Return the allocations per run over 50 runs, after one run to warm up."""
    program.run(*arrays)
    before = allocations()
    for _ in range(50):
        program.run(*arrays)
    return (allocations() - before) // 50  # whole ones: the loop itself takes one now and then


def chain(kernel, ops, *, profiled=False):
    """Return the count of a program of ``ops`` equal ops."""
    program = _native.Program(_native.Pool(2), max_rows=8, max_samples=0, max_segments=1, context=8)
    x, y = program.buffer(8192), program.buffer(8192)
    for _ in range(ops):
        program.epilogue([(8, toy[kernel])], x, 8192, y, [])
    program.finish()
    program.profile(profiled, events=64)  # fewer than there are, so that old ones are overwritten
    return per_run(program, np.zeros(8, np.int32), np.arange(8, dtype=np.int32), np.zeros((0, 4), np.int32), NONE, NONE)


def layer(form, kv, rows):
    """Return the count of a whole transformer layer on ``rows`` rows of two sequences."""
    half = np.arange(rows // 2, dtype=np.int32)
    segments = np.array([[0, rows // 2, 0, 0], [rows // 2, rows, 0, 2]], np.int32)
    tables = np.array([1, 2, 3, 4], np.int32)
    program = Tiny(_native.Pool(2), reference, form, kv).program
    return per_run(
        program, np.zeros(rows, np.int32), np.tile(half, 2), segments, tables, np.arange(rows, dtype=np.int32)
    )


def linears(count, *, adapters, changing=False):
    """Return the count of linears with adapters on 8 rows; ``changing``: other rows have them in every step."""
    program = _native.Program(_native.Pool(2), max_rows=8, max_samples=8, max_segments=1, context=8)
    program.open_adapters("f32", columns=64, max_ranges=16)
    x, y = program.buffer(64), program.buffer(64)
    weight = Tiny.pack("f32", np.ones((64, 64), F32))
    for i in range(count):
        slot = program.shrink([(8, reference["shrink_f32"])], f"{i}", x, k=64, panels=4)
        program.linear([(8, reference["linear_f32"])], weight, x, y, [_native.Epilogue.lora(slot)], module=f"{i}")
        program.rmsnorm([(8, reference["rmsnorm"])], y, np.ones(64, F32), 1e-5, x, module=f"norm {i}")
    program.finish()
    part = (16, 0, 0, 1, 4, np.ones((4, 16, 16), F32), None, None, None)
    a = np.ones(16 * 64 * 4, np.uint8)
    tensors = [(f"{i}", 16, a, np.ones(16, F32), [part]) for i in range(count)]
    saved = [(f"norm {i}", np.ones(64, F32)) for i in range(count)]
    plain = program.adapter("f32", tensors)
    own = program.adapter("f32", tensors, saved_vectors=saved, saved_tensors=[(f"{i}", weight) for i in range(count)])
    steps = []
    for end in range(1, 8) if changing else [4]:
        ranges = [(0, end, plain, 0.5), (0, end, own, 1.0), (end, 8, plain, 1.0)] if adapters else []
        steps.append(
            (np.zeros(8, np.int32), np.arange(8, dtype=np.int32), np.zeros((0, 4), np.int32), NONE, NONE, ranges)
        )
    for step in steps:
        program.run(*step)
    before = allocations()
    for i in range(49):
        program.run(*steps[i % len(steps)])
    return (allocations() - before) // 49


def sampling(typical_p, top_n_sigma, xtc_probability, xtc_threshold):
    """Return the count of one call that picks a token of each of 8 rows."""
    logits = np.random.default_rng(1).standard_normal((8, 5000)).astype(F32)
    rows = (np.full(8, value, kind) for value, kind in ((1, F32), (900, np.int32), (0.9, F32), (0.001, F32)))
    arguments = (*rows, np.zeros(8, np.uint64), np.arange(8, dtype=np.int64), np.zeros(8, np.int32))
    filters = tuple(np.full(8, value, F32) for value in (typical_p, top_n_sigma, xtc_probability, xtc_threshold))
    _native.sample(logits, *arguments, None, None, filters)
    before = allocations()
    for _ in range(50):
        _native.sample(logits, *arguments, None, None, filters)
    return (allocations() - before) // 50


print(
    json.dumps(
        {
            "sampling": sampling(1, 0, 0, 1),
            "sampling, all filters": sampling(0.9, 2, 1, 0.001),
            "one op": chain("add_one", 1),
            "hundred ops": chain("add_one", 100),
            "hundred ops, profiled": chain("add_one", 100, profiled=True),
            "a kernel that allocates": chain("allocates", 1),
            "adapters, none used": linears(9, adapters=False),
            "adapters, 1 linear": linears(1, adapters=True),
            "adapters, 9 linears": linears(9, adapters=True),
            "adapters, 9 linears, changing": linears(9, adapters=True, changing=True),
            "f32, 2 rows": layer("f32", "f32", 2),
            "f32, 40 rows": layer("f32", "f32", 40),
            "int4, 40 rows": layer("int4-g64", "int8", 40),
        }
    )
)
