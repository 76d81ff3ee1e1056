"""Sampling: Philox, the order of the filters, exactness, and the definition written again in plain Python."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sampling_parts import OFF, Definition

from infeng_core import _native as native
from infeng_core.batch import NOT_FINITE

FEW_USE = ("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold")


def sample(
    logits: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int | np.ndarray = 0,
    order: Sequence[str] = (),
    **more: Any,
) -> list[int]:
    """more: the filters that few use, and masks and changes."""
    rows = np.atleast_2d(np.asarray(logits, np.float32))
    n = len(rows)
    out = np.full(n, -1, np.int32)
    arguments = {name: value for name, value in more.items() if name in ("masks", "changes")}
    if arguments.keys() != more.keys():
        arguments["filters"] = tuple(np.full(n, more.get(name, OFF[name]), np.float32) for name in FEW_USE)
    if order:
        arguments["order"] = np.array([*map(native.FILTERS.index, order)], np.uint8)
    native.sample(
        rows,
        np.full(n, temperature, np.float32),
        np.full(n, top_k, np.int32),
        np.full(n, top_p, np.float32),
        np.full(n, min_p, np.float32),
        np.full(n, seed, np.uint64),
        np.broadcast_to(np.asarray(position, np.int64), n).copy(),
        out,
        **arguments,
    )
    return out.tolist()


def defined(logits: np.ndarray, kind: type[Definition] = Definition, **settings: Any) -> int:
    return kind(logits, **settings).draw()


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
        expected = defined(row, seed=seed, position=77, **settings)
        assert sample(row, seed=seed, position=77, **settings) == [expected]


def some_settings(rng: np.random.Generator) -> dict[str, Any]:
    """Return a mix of filters, each often off, in the order of the engine or any other."""
    values = {
        "temperature": rng.uniform(0.3, 2.5),
        "top_k": int(rng.integers(2, 400)),
        "top_p": rng.uniform(0.3, 1),
        "min_p": rng.uniform(0, 0.3),
        "typical_p": rng.uniform(0.05, 1),
        "top_n_sigma": rng.uniform(0.3, 3),
        "xtc_probability": rng.choice([0.5, 1.0]),
        "xtc_threshold": rng.uniform(0.005, 0.3),
    }
    found = {name: value for name, value in values.items() if rng.random() < 0.5}
    return found | ({"order": tuple(rng.permutation(native.FILTERS).tolist())} if rng.random() < 0.5 else {})


def some_row(rng: np.random.Generator) -> np.ndarray:
    row = (rng.standard_normal(503) * rng.uniform(1, 4)).astype(np.float32)
    return np.round(row) if rng.random() < 0.3 else row  # many equal logits


def test_filters_in_any_order_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(11)
    for at in range(500):
        row, settings = some_row(rng), some_settings(rng)
        expected = defined(row, seed=3, position=at, **settings)
        assert sample(row, seed=3, position=at, **settings) == [expected], settings


class NearestOfAll(Definition):
    """The expected surprise without weights."""

    def mean_distance(self, w: dict[int, int]) -> np.float32:
        return np.float32(-self.distances().mean())


class Reaches(Definition):
    def exceeds(self, running: int, target: int) -> bool:
        return running + 2**40 > target


class SigmaOfTheLeft(Definition):
    def sigma(self, divisor: int) -> float:
        return float(np.std(self.x[self.left].astype(np.float64)))


class OneStream(Definition):
    xtc_stream = 0


class KeepsTheLikeliest(Definition):
    def dropped(self, choices: list[int]) -> list[int]:
        return choices[1:]


class DropsAll(Definition):
    def dropped(self, choices: list[int]) -> list[int]:
        return choices if len(self.left) > len(choices) else choices[:-1]


class OldMaximum(Definition):
    """Shares of the likeliest of all tokens, though it may be gone."""

    def distances(self) -> np.ndarray:
        return (self.x[self.left] - self.x.max()) / np.float32(self.settings["temperature"])


@pytest.mark.parametrize(
    "kind", [NearestOfAll, Reaches, SigmaOfTheLeft, OneStream, KeepsTheLikeliest, DropsAll, OldMaximum]
)
def test_a_definition_with_one_term_wrong_is_found_out(kind: type[Definition]) -> None:
    rng = np.random.default_rng(12)
    cases = ((some_row(rng), some_settings(rng), at) for at in range(500))
    assert any(
        sample(row, seed=3, position=at, **settings) != [defined(row, kind, seed=3, position=at, **settings)]
        for row, settings, at in cases
    )


def textbook(p: np.ndarray, typical_p: float) -> set[int]:
    """Meister et al., "Locally typical sampling" (2023), by entropy."""
    entropy = -(p * np.log(p)).sum()
    order = np.argsort(np.abs(-np.log(p) - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), typical_p, side="right")) + 1
    return set(order[:count].tolist())


def test_typical_tokens_are_those_of_the_paper() -> None:
    rng = np.random.default_rng(4)
    for typical_p in (0.2, 0.5, 0.9):
        x = (rng.standard_normal(12) * 2).astype(np.float32)
        p = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
        picks = sample(np.tile(x, (4000, 1)), seed=1, position=np.arange(4000), typical_p=typical_p)
        expected = textbook(p, typical_p)
        assert set(picks) <= expected
        assert set(picks) >= {i for i in expected if p[i] > 0.01}


def test_xtc_acts_as_often_as_it_is_to_and_by_numbers_of_its_own() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    n = 20_000
    rows, at = np.tile(logits, (n, 1)), np.arange(n)
    picks = np.array(sample(rows, seed=3, position=at, xtc_probability=0.3, xtc_threshold=0.2))
    plain = np.array(sample(rows, seed=3, position=at))
    always = np.array(sample(rows, seed=3, position=at, xtc_probability=1.0, xtc_threshold=0.2))
    assert not (always == 0).any() and np.array_equal(sample(rows, seed=3, position=at, xtc_threshold=0.2), plain)
    acted = picks != plain
    assert (picks[acted] == always[acted]).all()
    assert abs((picks == 0).mean() - 0.6 * 0.7) < 5 * math.sqrt(0.42 * 0.58 / n)
    assert abs((picks == 0)[plain == 0].mean() - 0.7) < 0.03, "whether it acts does not depend on what is drawn"


def test_top_k_of_1_is_what_is_left_of_those_before_it() -> None:
    row = np.array([3.0, 2.9, 1.0, 0.5], np.float32)
    removed = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert sample(row, top_k=1, **removed) == [0]
    xtc_first = sorted(native.FILTERS, key=lambda name: name != "xtc")
    assert sample(row, top_k=1, order=xtc_first, **removed) == [1]


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
        ({"typical_p": 0.2}, {2}),
        ({"typical_p": 0.3}, {0, 2}),
        ({"typical_p": 0.8}, {0, 1, 2}),
        ({"top_n_sigma": 1.0}, {0}),
        ({"top_n_sigma": 1.5}, {0, 2}),
        ({"top_n_sigma": 2.2}, {0, 1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.3}, {0, 1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, {3}),
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
def test_a_row_that_is_not_finite_gives_no_token_and_its_neighbours_theirs(value: float) -> None:
    logits = np.random.default_rng(2).standard_normal((3, 90)).astype(np.float32)
    logits[1, 88] = value
    for temperature in (0.0, 1.0):
        alone = [sample(row, temperature=temperature)[0] for row in logits[[0, 2]]]
        assert sample(logits, temperature=temperature) == [alone[0], native.NOT_FINITE, alone[1]]
        assert sample(logits, temperature=temperature, **masks(90, (1, [5])))[1] == native.NOT_FINITE
    assert native.NOT_FINITE == NOT_FINITE


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
        ({"typical_p": 0.0}, "typical_p"),
        ({"typical_p": float("nan")}, "typical_p"),
        ({"top_n_sigma": -1.0}, "top_n_sigma"),
        ({"top_n_sigma": float("inf")}, "top_n_sigma"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": 0.0}, "xtc_threshold"),
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


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_an_order_that_does_not_number_each_filter_once_is_refused(order: list[int]) -> None:
    arrays = [
        np.ones(1, kind) for kind in (np.float32, np.int32, np.float32, np.float32, np.uint64, np.int64, np.int32)
    ]
    with pytest.raises(native.NativeError, match="order: must number each of the 6 filters once"):
        native.sample(np.zeros((1, 4), np.float32), *arrays, order=np.array(order, np.uint8))


@pytest.mark.parametrize(
    "settings", [{"top_p": 0.2}, {"typical_p": 0.1}, {"top_n_sigma": 0.5}, {"xtc_probability": 1.0}]
)
def test_greedy_is_not_affected_by_filters(settings: dict) -> None:
    logits = np.random.default_rng(7).standard_normal((40, 300)).astype(np.float32)
    assert sample(logits, temperature=0.0, **settings) == logits.argmax(axis=1).tolist()


def masks(vocab: int, *allowed: tuple[int, Any]) -> dict[str, Any]:
    """Return the argument ``masks`` for (row, ids) pairs."""
    flags = np.zeros((len(allowed), -(-vocab // 32) * 32), bool)
    for mask, (_, ids) in zip(flags, allowed, strict=True):
        mask[ids] = True
    rows = np.array([row for row, _ in allowed], np.int32)
    return {"masks": (rows, np.packbits(flags, axis=1, bitorder="little").view(np.uint32))}


def changes(*entries: tuple[int, int, float, float]) -> dict[str, Any]:
    """Return the argument ``changes`` for (row, id, penalty, bias) entries."""
    rows, ids, penalties, biases = zip(*entries, strict=True)
    integers, numbers = (np.array(rows, np.int32), np.array(ids, np.int32)), (penalties, biases)
    return {"changes": (*integers, *(np.array(values, np.float32) for values in numbers))}


def changed(x: np.ndarray, entries: Any, *allowed: Any) -> np.ndarray:
    """docs/numerics.md, word for word, in binary32."""
    x = x.copy()
    most = np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        for id_, penalty, bias in entries:
            x[id_] = x[id_] / np.float32(penalty) if x[id_] > 0 else x[id_] * np.float32(penalty)
            x[id_] = np.clip(x[id_], -most, most)
            x[id_] = np.clip(x[id_] + np.float32(bias), -most, most)
    for ids in allowed:
        x[np.setdiff1d(np.arange(len(x)), ids)] = -np.inf
    return x


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 20},
        {"temperature": 1.0, "top_k": 700},
        {"temperature": 2.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 2.0**-126},
        {"temperature": 1.3, "top_k": 300, "top_p": 0.95, "min_p": 0.001},
        {"temperature": 1.0, "top_n_sigma": 1.7},
        {"temperature": 1.0, "typical_p": 0.4},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.02},
        {"temperature": 3e38},
    ],
)
def test_masks_penalties_and_biases_come_before_everything_else(settings: dict) -> None:
    rng = np.random.default_rng(6)
    for row in (rng.standard_normal((8, 1003)) * 3).astype(np.float32):
        entries = [(int(id_), *rng.uniform(0.3, 3, 2).astype(np.float32)) for id_ in rng.integers(0, 1003, 300)]
        allowed = [rng.choice(1003, count, replace=False) for count in (900, 60)]
        if not np.intersect1d(*allowed).size:
            continue
        for ids in ([], allowed[:1], allowed):
            x = changed(row, entries, *ids)
            expected = defined(x, seed=3, position=77, **settings)
            given = changes(*((0, *entry) for entry in entries)) | masks(1003, *((0, some) for some in ids))
            assert sample(row, seed=3, position=77, **settings, **given) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_changed_each_for_itself_and_the_logits_stay(temperature: float) -> None:
    logits = np.random.default_rng(1).standard_normal((6, 333)).astype(np.float32)
    before = logits.copy()
    plain = sample(logits, temperature=temperature, seed=4)
    given = masks(333, (1, [7, 9]), (4, range(300)), (4, [5])) | changes((2, 300, 1, 90.0), (4, 5, 2, -3.0))
    found = sample(logits, temperature=temperature, seed=4, **given)
    assert [found[row] for row in (0, 3, 5)] == [plain[row] for row in (0, 3, 5)]
    assert found[1] in (7, 9) and found[2] == 300 and found[4] == 5
    alone = sample(logits[1], temperature=temperature, seed=4, **masks(333, (0, [7, 9])))
    assert alone == [found[1]]
    assert np.array_equal(logits, before)


def test_changes_that_change_nothing_change_nothing() -> None:
    logits = np.random.default_rng(3).standard_normal((50, 321)).astype(np.float32)
    all_of_them = masks(321, *((row, range(321)) for row in range(50)))
    none = changes(*((row, id_, 1.0, 0.0) for row in range(50) for id_ in range(321)))
    for temperature in (0.0, 0.7):
        assert sample(logits, temperature=temperature, seed=8, **all_of_them, **none) == sample(
            logits, temperature=temperature, seed=8
        )


def test_a_row_of_which_nothing_is_allowed_gives_no_token_and_its_neighbours_theirs() -> None:
    logits = np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)
    nothing = masks(40, (1, range(40, 64)))  # bits behind the vocabulary are none of it
    between = masks(40, (1, [3]), (1, [4]))
    for temperature in (0.0, 1.0):
        first, _, last = sample(logits, temperature=temperature)
        for given in (nothing, between):
            found = sample(logits, temperature=temperature, **given)
            assert found == [first, native.NOTHING_ALLOWED, last]


def test_what_would_be_infinite_is_the_largest_number() -> None:
    logits = np.array([3e38, -3e38, 1, 2], np.float32)
    assert sample(logits, temperature=0, **changes((0, 2, 1e-38, 3.4e38), (0, 3, 1, 3.4e38))) == [2]
    assert sample(logits, temperature=0, **changes((0, 0, 1, -3.4e38), (0, 0, 1, -3.4e38))) == [3]
    least = changes((0, 1, 1e38, -3.4e38), (0, 1, 1, 3.4e38), (0, 1, 1, 3.4e38))
    assert sample(logits, temperature=0, **least) == [1]  # from the least number, in order
    assert sample(logits, temperature=0, **masks(4, (0, [1])), **changes((0, 1, 3e38, 0))) == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (masks(64, (0, [1])), r"masks: needs \(masks,\) rows and \(masks, 1\) words"),
        (masks(9, (2, [1])), "masks: rows must ascend and be below 2"),
        (masks(9, (1, [1]), (0, [1])), "masks: rows must ascend and be below 2"),
        (masks(9, (-1, [1])), "masks: rows must ascend and be below 2"),
        (changes((2, 0, 1, 0)), "changes: rows must ascend and be below 2"),
        (changes((0, 9, 1, 0)), "changes: id 9 is not in the vocabulary of 9"),
        (changes((0, -1, 1, 0)), "changes: id -1 is not in the vocabulary of 9"),
        (changes((0, 0, 0, 0)), "changes: a penalty must be finite and above 0, not 0"),
        (changes((0, 0, float("inf"), 0)), "changes: a penalty must be finite"),
        (changes((0, 0, 1, float("nan"))), "changes: a bias must be finite"),
        (
            {"changes": (*changes((0, 0, 1, 0))["changes"][:3], np.zeros(2, np.float32))},
            "changes: needs one id, penalty",
        ),
    ],
)
def test_impossible_changes_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(native.NativeError, match=message):
        sample(np.zeros((2, 9)), **given)
