"""A batch of any adapters and the base gives each request the bytes that it has alone, whatever computes them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import infeng_demo
import pytest
from e2e import harness
from goldens.adapted import ADAPTED
from goldens.shapes import BIASED, LINEAR, LLAMA3, Case

from infeng_core import SamplingParams
from infeng_core.requests.request import Request

BASES: dict[str, dict[str, object]] = {
    "int4-g64": {"model.format": "int4-g64", "kv_cache.dtype": "int8"},
    "int4-g32 and int8-row": {"model.format": "int4-g32", "model.formats": {"embed": "int8-row"}},
    "f32": harness.F32,
}
DEMO_BASES = BASES | {"int4-p32-arow-h256": {"model.format": "int4-p32-arow-h256"}}
NEW = 8  # tokens of each request
Rows = dict[int, int]  # checksums of a request's logits by position
Uses = Sequence[tuple[str, float]] | str | None


def adapters_of(case: Case) -> dict[str, Path]:
    return {each.name: each.directory for each in ADAPTED if each.base is case and not each.combines}


def requests(case: Case, uses: Sequence[Uses]) -> list[Request]:
    """Return a request for each use, of unequal lengths."""
    prompts = [case.prompt[5 * i : 5 * i + 9 + 13 * (i % 4)].tolist() for i in range(len(uses))]
    return [
        Request(tuple(prompt), SamplingParams(temperature=0.9, seed=i, max_tokens=NEW, ignore_eos=True), adapter=use)
        for i, (prompt, use) in enumerate(zip(prompts, uses, strict=True))
    ]


def run(
    directory: Path,
    adapters: Mapping[str, Path],
    todo: Sequence[Request],
    *settings: Mapping[str, object],
    alone: bool = False,
    threads: int = 1,
    rows: int = 512,
    library: str | None = None,
) -> list[Rows]:
    """Run requests one after the other or all together; returns the checksums of each one's logits.

    ``library`` must run all linears and shrinks.
    """
    with harness.engine(directory, *settings, threads=threads, rows=rows, adapters=adapters) as engine:
        bound = harness.libraries(engine.executable.bound(), ("linear", "shrink"))
        assert library is None or bound == {library}
        for name in adapters:
            engine.adapters.pin(name)  # so that all requests begin together
        recorder = harness.Recorder(engine)
        if alone:
            for request in todo:
                engine.generate([request])
        else:
            engine.generate(list(todo))
            assert recorder.largest_batch == len(todo) or rows < 512
        found = []
        for i, request in enumerate(todo):
            places = range(len(request.prompt) - 1, len(request.prompt) - 1 + NEW)
            found.append({place: checksum for place, checksum in recorder.of(i).items() if place in places})
    assert all(len(each) == NEW for each in found)
    return found


def check(directory: Path, adapters: Mapping[str, Path], todo: Sequence[Request], base: Mapping[str, object]) -> None:
    """Compare every way of running ``todo`` with each request alone on the reference kernels."""
    reference = harness.IMPLEMENTATIONS["reference"]
    expected = run(directory, adapters, todo, base, reference, alone=True)
    assert len({tuple(each.values()) for each in expected}) == len(todo)  # no two of them are the same text
    assert run(directory, adapters, todo, base, reference, rows=23) == expected
    fast: Mapping[str, object] = MappingProxyType({})  # what the machine has
    for library in ("avx2", "avx512"):
        if not harness.missing(library):
            fast = harness.IMPLEMENTATIONS[library]
            assert run(directory, adapters, todo, base, fast, library=library) == expected
    assert run(directory, adapters, todo, base, fast, alone=True, threads=2) == expected
    assert run(directory, adapters, todo, base, threads=2, rows=23) == expected  # all plugins there are, in chunks
    speculating = {"speculation.use": "ngram", "speculation.tokens": 3}
    assert run(directory, adapters, todo, base, speculating, threads=2) == expected
    assert run(directory, adapters, todo[::-1], base, threads=2) == expected[::-1]


TINY: dict[str, tuple[Case, tuple[Uses, ...]]] = {
    "low rank, DoRA, biases, combinations": (
        BIASED,
        (
            None,
            "lora",
            "dora",
            (("lora", 0.5), ("thin", -1.25)),
            "bias-all",
            None,
            (("thin", 1.0), ("dora", 1.0)),
            "lora",
        ),
    ),
    "saved modules": (LINEAR, ("saved", None, "patterns", "saved", "dora-rslora-head", "lora-bias", None)),
    "ends of a tied model": (LLAMA3, ("embedding", "saved-head", None, "head", "saved-embedding", "one-layer")),
}


# Of each kind of adapter one storage in every run, of the last one in the slow suite; the others at night.
USUAL = dict(zip(zip(TINY, BASES, ("int8", "bf16", "f32"), strict=True), ((), (), pytest.mark.slow), strict=True))
USUAL[next(iter(TINY)), "int4-g64", "int8t4"] = ()


@pytest.mark.parametrize(
    ("kind", "base", "dtype"),
    [
        pytest.param(*each, marks=USUAL.get(each, pytest.mark.nightly))
        for each in itertools.product(TINY, BASES, ("f32", "bf16", "int8", "int8t4"))
    ],
)
def test_a_mixed_batch_gives_each_request_the_bytes_it_has_alone(
    kind: str, base: str, dtype: str, reduced: dict[str, Path]
) -> None:
    case, uses = TINY[kind]
    check(reduced[case.name], adapters_of(case), requests(case, uses), BASES[base] | {"adapters.dtype": dtype})


DEMO = Path(infeng_demo.__file__).parent / "adapters"
DEMO_USES: tuple[Uses, ...] = (
    "shakespeare",
    None,
    "shakespeare-dora",
    (("shakespeare", 0.5), ("python", 0.75)),
    "python",
)


@pytest.mark.parametrize(
    ("base", "dtype"),
    [
        pytest.param("int4-g64", "int8", marks=pytest.mark.slow),
        pytest.param("int4-p32-arow-h256", "int8t4", marks=pytest.mark.slow),
        pytest.param("f32", "bf16", marks=pytest.mark.nightly),
        pytest.param("int4-g64", "f32", marks=pytest.mark.nightly),
    ],
)
def test_the_demo_model_and_its_adapters_give_equal_bytes_in_every_setup(base: str, dtype: str) -> None:
    """Large enough for many tiles, and trained."""
    adapters = {path.name: path for path in DEMO.iterdir() if path.is_dir()}
    check(infeng_demo.model_dir(), adapters, requests(BIASED, DEMO_USES), DEMO_BASES[base] | {"adapters.dtype": dtype})
