"""Arenas, packed weights and the key/value cache."""

import gc
import mmap
import resource
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

PANEL_BYTES = {  # of k = 576: nine groups of 64
    "f32": 576 * 64,
    "bf16": 576 * 32,
    "int8-row": 64 + 576 * 16,
    "int4-g64": 5 * 64 + 576 * 8,
    "int4-g32": 9 * 9 * 64,
    "int4-p32": 6 * 64 + 576 * 8,
    "int5-p32": 6 * 64 + 576 * 10,
    "int6-p32": 6 * 64 + 576 * 12,
    "int8-g32": 9 * 17 * 64,
    "int4-a256": 3 * 64 + 9 * 9 * 64,
    "int4-a128": 5 * 64 + 9 * 9 * 64,
}


def test_an_arena_is_zeroed_aligned_and_writable():
    arena = _native.Arena(5_000_000)
    array = np.frombuffer(arena, np.uint8)
    assert (arena.nbytes, len(arena), array.size) == (5_000_000,) * 3
    assert array.ctypes.data % (2 << 20) == 0
    assert not array.any()
    array[:] = 7
    assert bytes(memoryview(arena)[-3:]) == b"\7\7\7"


def test_an_arena_lives_as_long_as_its_views():
    view = np.frombuffer(_native.Arena(1 << 20), np.uint8)
    view[:] = 3
    gc.collect()
    others = [np.frombuffer(_native.Arena(1 << 20), np.uint8) for _ in range(8)]
    assert view.min() == 3
    assert not any(other.any() for other in others)


def test_huge_pages_are_counted():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system gives no huge pages")
    arena = _native.Arena(32 << 20)
    assert arena.huge_bytes() == 0
    np.frombuffer(arena, np.uint8)[:] = 1
    small = _native.Arena(32 << 20, huge_pages=False)
    np.frombuffer(small, np.uint8)[:] = 1
    assert small.huge_bytes() == 0
    assert 0 <= arena.huge_bytes() <= 32 << 20
    assert arena.huge_bytes() % (2 << 20) == 0


def test_impossible_arenas_are_errors(expect):
    with expect("invalid_argument"):
        _native.Arena(-1)
    with expect("invalid_argument"):
        _native.Arena(1 << 60)


def test_no_memory_is_an_error_with_the_bytes(expect):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
    try:
        with expect("out_of_memory", "cannot map 17592186044416 bytes"):
            _native.Arena(1 << 44)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("form", PANEL_BYTES)
def test_a_weight_knows_the_size_of_its_panels(expect, form):
    size = PANEL_BYTES[form]
    weight = _native.Weight(form, 40, 576, 3, size, _native.Arena(3 * size))
    assert (weight.format, weight.n, weight.k, weight.panels) == (form, 40, 576, 3)
    assert _native.panel_bytes(form, 576) == size
    with expect("invalid_argument", f"has {size} bytes, not {size + 64}"):
        _native.Weight(form, 40, 576, 3, size + 64, _native.Arena(8 * size))


def test_weights_that_do_not_fit_their_data_are_errors(expect):
    arena = _native.Arena(4 * 4096)
    assert _native.Weight("f32", 16, 64, 1, 4096, arena, 3 * 4096).panels == 1
    with expect("invalid_argument", "do not fit in the 4096 bytes"):
        _native.Weight("f32", 32, 64, 2, 4096, arena, 3 * 4096)
    with expect("invalid_argument", "do not hold 33 outputs"):
        _native.Weight("f32", 33, 64, 2, 4096, arena)
    with expect("invalid_argument", "64-byte boundary"):
        _native.Weight("f32", 16, 64, 1, 4096, arena, 32)
    with expect("invalid_argument", "outside"):
        _native.Weight("f32", 16, 64, 1, 4096, arena, 1 << 40)
    with expect("invalid_argument", "outside"):
        _native.Weight("f32", 16, 64, 1, 4096, arena, -64)
    with expect("invalid_argument", "contiguous bytes"):
        _native.Weight("f32", 16, 64, 1, 4096, "text")
    with expect("invalid_argument"):
        _native.Weight("f32", 1 << 62, 64, 1 << 58, 4096, arena)


def test_a_weight_takes_a_read_only_mapped_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    weight = _native.Weight("f32", 16, 64, 1, 4096, mapped, 4096)
    with pytest.raises(BufferError):
        mapped.close()  # the weight still holds it
    del weight
    mapped.close()


SLABS = {"f32": 2 * 16 * 80 * 4, "int8": 2 * 16 * 80 + 128, "int8h": 2 * 16 * 80 + 128, "k8v4h": 16 * 80 * 3 // 2 + 128}
SLABS |= {"int4h": 16 * 80 + 128, "fp8h": 2 * 16 * 80 + 128}
SLABS |= {"k8v4hi": SLABS["k8v4h"], "int4hi": SLABS["int4h"]}
SLABS |= {"int8i": 2 * 16 * 80 + 128, "int8hi": 2 * 16 * 80 + 128}


@pytest.mark.parametrize(("form", "slab"), SLABS.items())
def test_a_cache_lays_out_blocks_heads_and_layers(form, slab):
    cache = _native.KvCache(form, layers=3, blocks=5, kv_heads=2, head_dim=80)
    assert cache.nbytes == 3 * 5 * 2 * slab
    assert cache.block_bytes == 3 * 2 * slab
    assert _native.KvCache.bytes_per_block(form, layers=3, kv_heads=2, head_dim=80) == cache.block_bytes
    layers = [cache.layer(index) for index in range(3)]
    for index, layer in enumerate(layers):
        assert layer.shape == (5, 2, slab)
        layer[:] = index + 1
    assert [int(layer.max()) for layer in layers] == [1, 2, 3]
    assert [int(layer.min()) for layer in layers] == [1, 2, 3]


def test_a_large_cache_costs_nothing_until_it_is_used():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    cache = _native.KvCache("f32", layers=32, blocks=4096, kv_heads=8, head_dim=128)
    assert cache.nbytes == 32 * 4096 * 8 * 2 * 16 * 128 * 4
    assert resident() - before < 1 << 20


def test_impossible_caches_are_errors(expect):
    good = {"layers": 1, "blocks": 1, "kv_heads": 1, "head_dim": 8}
    for name, value in (("layers", 0), ("blocks", -1), ("kv_heads", 0), ("head_dim", 1 << 40)):
        with expect("invalid_argument"):
            _native.KvCache("f32", **{**good, name: value})
    with expect("invalid_argument", "16 positions"):
        _native.KvCache("f32", **good, block_tokens=32)
    with expect("unknown_name", "int4"):
        _native.KvCache("int4", **good)
    for form in ("int8h", "k8v4h", "int4h", "fp8h", "int8hi", "k8v4hi", "int4hi"):
        with expect("unsupported", f"cache format {form} takes heads of a multiple of 8 elements, not of 63"):
            _native.KvCache(form, **{**good, "head_dim": 63})
        with expect("unsupported", "multiple of 8 elements, not of 20"):
            _native.KvCache(form, **good, v_head_dim=20)
    with expect("invalid_argument", "no layer 1"):
        _native.KvCache("f32", **good).layer(1)
    with expect("out_of_memory"):
        _native.KvCache("f32", layers=1 << 16, blocks=(1 << 31) - 1, kv_heads=1 << 16, head_dim=1 << 14)
