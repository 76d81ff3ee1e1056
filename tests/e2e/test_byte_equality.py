"""One request has one set of logits, to the byte: whatever its batch, threads, chunks, neighbours or kernels."""

from __future__ import annotations

from pathlib import Path

import infeng_demo
import pytest
from e2e import harness
from goldens.shapes import BIASED

from infeng_core import SamplingParams
from infeng_core.requests.request import Request

FORMATS: dict[str, dict[str, object]] = {
    "int4-g64, int8 cache": {"model.format": "int4-g64", "kv_cache.dtype": "int8"},
    "int4-g32, int8-row, sub-scales, minima, f32 cache": {
        "model.format": "int4-g32",
        "model.formats": {
            "embed": "int8-row",
            "layers.*.down_proj": "int8-row",
            "layers.*.qkv_proj": "int4-p32",
            "layers.*.o_proj": "int5-p32",
            "layers.0.gate_up_proj": "int6-p32",
            "layers.1.gate_up_proj": "int4-a256",
        },
        "kv_cache.dtype": "f32",
    },
    "int4-g64, f16 cache": {"model.format": "int4-g64", "kv_cache.dtype": "f16"},
    "int4-g64, int4h cache": {"model.format": "int4-g64", "kv_cache.dtype": "int4h"},
    "int4-g64, int8i cache": {"model.format": "int4-g64", "kv_cache.dtype": "int8i"},
    "int8-row, int8hi cache": {"model.format": "int8-row", "kv_cache.dtype": "int8hi"},
    "int8-row, k8v4hi cache": {"model.format": "int8-row", "kv_cache.dtype": "k8v4hi"},
    "int4-g64, int4hi cache": {"model.format": "int4-g64", "kv_cache.dtype": "int4hi"},
    "int8-row, int8h cache": {"model.format": "int8-row", "kv_cache.dtype": "int8h"},
    "int8-row, k8v4h cache": {"model.format": "int8-row", "kv_cache.dtype": "k8v4h"},
    "f32, fp8h cache": {**harness.F32, "kv_cache.dtype": "fp8h"},
    "f32": harness.F32,
}
USUAL = list(FORMATS)[:2]  # integers in every layout, and two kinds of cache
PROMPT = tuple(BIASED.prompt[:301].tolist())  # past the attention split at 256
PARAMS = SamplingParams(temperature=0.9, seed=11, max_tokens=12, ignore_eos=True)


def neighbours(count: int) -> list[Request]:
    """Return requests of other prompts, lengths and seeds."""
    prompts = [BIASED.prompt[7 * i : 7 * i + 5 + 11 * i] for i in range(count)]
    return [
        Request(tuple(prompt.tolist()), SamplingParams(temperature=1, seed=i, max_tokens=4 + 3 * i, ignore_eos=True))
        for i, prompt in enumerate(prompts)
    ]


def run(
    directory: Path, *settings: dict[str, object], threads: int = 1, batch: int = 1, rows: int = 512
) -> tuple[dict[int, int], harness.Recorder]:
    """Run the request among ``batch`` - 1 others; returns its logits' checksums by position, and what was seen."""
    with harness.engine(directory, *settings, threads=threads, rows=rows) as engine:
        recorder = harness.Recorder(engine)
        others = neighbours(batch - 1)
        at = len(others) // 2
        engine.generate([*others[:at], Request(PROMPT, PARAMS), *others[at:]])
        rows_of_request = recorder.of(at)
    assert sorted(rows_of_request) == list(range(len(PROMPT) - 1, len(PROMPT) - 1 + PARAMS.max_tokens))
    return rows_of_request, recorder


@pytest.mark.parametrize(
    ("model", "format"),
    [
        *(pytest.param("biased", format, marks=() if format in USUAL else pytest.mark.slow) for format in FORMATS),
        pytest.param("demo", "int4-g64, int8 cache", marks=pytest.mark.slow),
        *(pytest.param("demo", format, marks=pytest.mark.nightly) for format in list(FORMATS)[1:]),
    ],
)
def test_the_same_request_has_the_same_bytes(model: str, format: str, reduced: dict[str, Path]) -> None:
    """On a model of awkward sizes, and on one that is large enough for many tiles."""
    directory = infeng_demo.model_dir() if model == "demo" else reduced[model]
    settings = FORMATS[format]
    reference = run(directory, settings, harness.IMPLEMENTATIONS["reference"])[0]
    fast: dict[str, object] = {}
    for library in ("avx2", "avx512"):
        if not harness.missing(library):
            fast = harness.IMPLEMENTATIONS[library]
            assert run(directory, settings, fast)[0] == reference
    assert run(directory, settings, fast, threads=2)[0] == reference

    among_others, seen = run(directory, settings, fast, threads=2, batch=16)
    assert seen.largest_batch == 16
    assert among_others == reference

    in_seven_chunks, seen = run(directory, settings, fast, threads=2, rows=43)
    assert seen.steps == 7 + PARAMS.max_tokens - 1
    assert in_seven_chunks == reference

    slowly_among_others = run(directory, settings, harness.IMPLEMENTATIONS["reference"], batch=16, rows=43)[0]
    assert slowly_among_others == reference


def test_the_embedded_model_has_the_same_bytes_on_all_threads_and_under_the_reference() -> None:
    reference = run(infeng_demo.model_dir(), harness.IMPLEMENTATIONS["reference"], rows=43)[0]
    assert run(infeng_demo.model_dir(), threads=2, batch=16)[0] == reference


def test_different_requests_have_different_bytes(reduced: dict[str, Path]) -> None:
    with harness.engine(reduced["biased"], FORMATS["f32"]) as engine:
        recorder = harness.Recorder(engine)
        engine.generate([Request(PROMPT, PARAMS), Request((*PROMPT[:-1], PROMPT[-1] ^ 1), PARAMS)])
        assert recorder.of(0)[len(PROMPT) - 1] != recorder.of(1)[len(PROMPT) - 1]
