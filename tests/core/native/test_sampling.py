"""Sampling: Philox, the order of the filters, exactness, and one definition written again in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest

from infeng_core import _native as native


def sample(
    logits: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int | np.ndarray = 0,
) -> list[int]:
    rows = np.atleast_2d(np.asarray(logits, np.float32))
    n = len(rows)
    out = np.full(n, -1, np.int32)
    native.sample(
        rows,
        np.full(n, temperature, np.float32),
        np.full(n, top_k, np.int32),
        np.full(n, top_p, np.float32),
        np.full(n, min_p, np.float32),
        np.full(n, seed, np.uint64),
        np.broadcast_to(np.asarray(position, np.int64), n).copy(),
        out,
    )
    return out.tolist()


def defined(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, at: int) -> int:
    """docs/numerics.md, word for word. exp is math.exp: the weights differ in their last bits only."""
    x = np.asarray(logits, np.float32)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))[: top_k or len(x)]
    p = {i: math.exp(float((x[i] - x.max()) / np.float32(temperature))) for i in order}
    w = {i: int(p[i] * 2**40) for i in order}
    total, running, kept = sum(w.values()), 0, []
    for i in order:
        kept.append(i)
        running += w[i]
        if running >= float(np.float32(top_p)) * total:
            break
    kept = [i for i in kept if p[i] >= float(np.float32(min_p))]
    words = native.philox((seed & 0xFFFFFFFF, seed >> 32), (at & 0xFFFFFFFF, at >> 32, 0, 0))
    target = (words[0] | words[1] << 32) * sum(w[i] for i in kept) >> 64
    running = 0
    for i in kept:
        running += w[i]
        if running > target:
            return i
    raise AssertionError("the weights do not reach the target")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert native.philox(key, counter) == expected  # Random123 kat_vectors, philox4x32 10


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert sample([1, 5, 5, 2], temperature=0) == [1]
    assert sample([-0.0, 0.0, -1], temperature=0) == [0]
    assert sample([-3, -2, -1e30], temperature=0) == [1]
    assert sample([7], temperature=0) == [0]
    assert sample([1, 5, 5, 2], temperature=0.7, top_k=1, seed=9) == [1]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 5.0, "top_k": 50},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 1.3, "top_k": 300, "top_p": 0.95, "min_p": 0.001},
        {"temperature": 0.8, "top_p": 1e-6},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "top_k": 10_000},
    ],
)
def test_every_pick_is_the_one_that_the_definition_gives(settings: dict) -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((60, 1000)) * 3).astype(np.float32)
    logits[::7] = np.round(logits[::7])  # many equal logits
    seeds = rng.integers(0, 2**64, 60, dtype=np.uint64)
    for row, seed in zip(logits, seeds.tolist(), strict=True):
        full = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
        expected = defined(row, seed=seed, at=77, **full)
        assert sample(row, seed=seed, position=77, **settings) == [expected]


def test_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    n = 20_000
    counts = Counter(sample(np.tile(logits, (n, 1)), seed=3, position=np.arange(n)))
    for token, p in enumerate([0.5, 0.25, 0.125, 0.125]):
        assert abs(counts[token] / n - p) < 5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {0, 2}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 2}),
        ({"min_p": 0.3}, {0, 2}),
        ({"min_p": 0.2}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.99}, {0, 1, 2}),
    ],
)
def test_filters_keep_exactly_the_tokens_they_should(settings: dict, allowed: set[int]) -> None:
    logits = np.log(np.array([0.5, 0.125, 0.25, 0.125], np.float32))  # 1 and 3 are equal: the lower id is first
    picks = sample(np.tile(logits, (600, 1)), seed=1, position=np.arange(600), **settings)
    assert set(picks) == allowed


def test_a_pick_depends_on_its_row_seed_and_position_only() -> None:
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((5, 32_000)).astype(np.float32)
    alone = [sample(row, seed=4, position=9)[0] for row in logits]
    assert sample(logits, seed=4, position=9) == alone
    assert sample(logits, seed=4, position=10) != alone
    assert sample(logits, seed=2**63, position=9) != alone
    wide = np.zeros((5, 32_064), np.float32)
    wide[:, :32_000] = logits
    assert sample_view(wide[:, :32_000]) == alone


def sample_view(rows: np.ndarray) -> list[int]:
    n = len(rows)
    out = np.zeros(n, np.int32)
    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    integers = (np.zeros(n, np.int32), np.full(n, 4, np.uint64), np.full(n, 9, np.int64))
    native.sample(rows, ones, integers[0], ones, zeros, integers[1], integers[2], out)
    return out.tolist()


def test_extreme_temperatures_and_logits_are_no_special_case() -> None:
    logits = np.array([3e38, -3e38, 1, 3.1e38], np.float32)
    assert sample(logits, temperature=1e-30, seed=1) == [3]
    assert sample(logits, temperature=1e-45, seed=1) == [3]
    assert sample([1.0, 1.5], temperature=1e-3, seed=2) == [1]
    picks = sample(np.tile([0.0, 50.0], (400, 1)), temperature=3e38, position=np.arange(400))
    assert 140 < sum(picks) < 260
    assert sample(np.zeros(70_000), seed=6)[0] > 0  # a flat distribution over one bucket


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_refused_with_their_row(value: float) -> None:
    logits = np.zeros((3, 9), np.float32)
    logits[2, 8] = value
    for temperature in (0.0, 1.0):
        with pytest.raises(native.NativeError, match="row 2") as caught:
            sample(logits, temperature=temperature)
        assert caught.value.code == "not_finite"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(native.NativeError, match=f"row 0: {message}"):
        sample(np.zeros(4), **settings)


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(native.NativeError, match="1 to 4194304 tokens"):
        sample(np.zeros((1, 0), np.float32))
    with pytest.raises(native.NativeError, match="seed: needs one entry for each of the 2 rows"):
        one, two = np.ones(1, np.uint64), np.ones(2, np.float32)
        integers = np.zeros(2, np.int32)
        native.sample(np.zeros((2, 4), np.float32), two, integers, two, two, one, np.zeros(2, np.int64), integers)
