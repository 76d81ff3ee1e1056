"""Keys and values with outliers equal the reference byte for byte in every library and cache format."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.harness import OneOp, find_kernel, random_rows, reference

from infeng_core import _native as native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins

FEATURES = set(native.cpu_info().features)
LIBRARIES = [library for library in libraries(Plugins.discover()) if library.name != reference().name]
ROWS, HEADS = 40, 4


def hard_rows(dim: int) -> np.ndarray:
    """Return rows of four heads of q, one of k and one of v, (ROWS, 6 * dim).

    k and v have outliers, ties, opposite extremes, zeros, and very small and large numbers.
    """
    x = random_rows(5, ROWS, (HEADS + 2) * dim)
    hard = x[:, HEADS * dim :]
    hard[::3, 3::16] *= 1000
    hard[4] = np.arange(2 * dim) % 17 - 8  # whole steps and halves of them
    hard[7] = np.where(np.arange(2 * dim) % 2, 1.0, -1.0)
    hard[8] = 0
    hard[9] *= np.float32(1e-30)
    hard[10] = np.float32(1e-40)
    hard[11] *= np.float32(1e25)
    hard[12, 1:] = 0
    return x


def run(library: native.Library, fmt: str, dim: int, features: set[str], stale: int = 0) -> tuple[bytes, bytes]:
    """Return the cache and the attention of hard rows, by a library's first kernels for them.

    Where it has none, the reference's. stale: what every byte of the cache was before.
    """
    x = hard_rows(dim)
    cache = native.KvCache(fmt, layers=1, blocks=3, kv_heads=1, head_dim=dim)
    cache.layer(0)[:] = stale
    op = OneOp(ROWS, context=ROWS, segments=[(0, ROWS, 0, 0)], block_tables=[2, 0, 1])
    shape = {"heads": HEADS, "kv_heads": 1, "head_dim": dim, "context": ROWS, "rows": (1, ROWS)}
    kernels = []
    for name in ("kv_append", "attention"):
        problem = native.Problem(name, kv=fmt, **shape)
        found = [one for one in library.kernels if one.op == name and set(one.features) <= features]
        kernels.append(next((one for one in found if one.accepts(problem)), find_kernel(reference(), problem)))
    source, out = op.input(x), op.output(HEADS * dim)
    op.program.kv_append(op.bind(kernels[0]), source, cache, 0, k_column=HEADS * dim, v_column=(HEADS + 1) * dim)
    op.program.attention(op.bind(kernels[1]), source, cache, 0, out, heads=HEADS, scale=0.125)
    op.run()
    return cache.layer(0).tobytes(), op.result(out).tobytes()


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_rows_with_outliers_equal_the_reference_byte_for_byte(library: native.Library, fmt: str) -> None:
    for dim in (48, 64, 96, 128):  # whole and in blocks
        expected, found = run(reference(), fmt, dim, FEATURES), run(library, fmt, dim, FEATURES)
        assert found[0] == expected[0], f"the cache, heads of {dim}"
        assert found[1] == expected[1], f"attention, heads of {dim}"
        assert np.isfinite(np.frombuffer(expected[1], np.float32)).all()


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
@pytest.mark.parametrize("library", [reference(), *LIBRARIES], ids=lambda library: library.name)
def test_what_a_block_held_before_reaches_no_row(library: native.Library, fmt: str) -> None:
    assert run(library, fmt, 64, FEATURES, stale=255)[1] == run(library, fmt, 64, FEATURES)[1]  # NaN as f32
