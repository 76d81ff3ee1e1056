"""Broken adapters, and adapters that come and go, beside a running batch: typed errors, and its bytes stay."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from goldens.adapted import ADAPTED
from goldens.shapes import BIASED, LINEAR
from safetensors.numpy import load_file, save_file

from infeng_core import Engine, SamplingParams
from infeng_core.errors import AdapterError, RequestError
from infeng_core.requests.request import Request

GOOD = {case.name: case.directory for case in ADAPTED if case.base is BIASED and not case.combines}
WEIGHTS = "adapter_model.safetensors"
A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def _tensors(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


def _config(directory: Path, **changes: object) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _header(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = (directory / WEIGHTS).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (directory / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def wrong_base(d: Path) -> None:
    """Bring an adapter of another model."""
    [other] = (case for case in ADAPTED if case.base is LINEAR and case.name == "rslora")
    shutil.copy(other.directory / WEIGHTS, d / WEIGHTS)


def wrong_rank(d: Path) -> None:
    """Let A have one row less than B has columns."""
    _tensors(d, lambda t: t.update({A: t[A][:-1].copy()}))


def truncated(d: Path) -> None:
    """Cut the last kilobyte off."""
    (d / WEIGHTS).write_bytes((d / WEIGHTS).read_bytes()[:-1024])


def not_a_number(d: Path) -> None:
    """Store a NaN."""
    _tensors(d, lambda t: t.update({A: np.where(np.arange(t[A].size).reshape(t[A].shape) == 5, np.nan, t[A])}))


def infinite(d: Path) -> None:
    """Store an infinity."""
    _tensors(d, lambda t: t.update({A: np.full_like(t[A], np.inf)}))


def a_bomb(d: Path) -> None:
    """Announce tensors of terabytes in a file of kilobytes."""
    _header(d, lambda h: h[A].update(shape=[1 << 20, 1 << 20], data_offsets=[0, 1 << 42]))


def a_header_bomb(d: Path) -> None:
    """Announce a header of nearly 2^64 bytes."""
    (d / WEIGHTS).write_bytes(struct.pack("<Q", 2**64 - 8) + (d / WEIGHTS).read_bytes()[8:])


def traversal(d: Path) -> None:
    """Name a tensor like a path out of the folder."""
    _header(d, lambda h: h.update({"base_model.model.../../../etc/passwd.lora_A.weight": h.pop(A)}))


def a_rank_of_thousands(d: Path) -> None:
    """Claim a rank that no adapter has."""
    _config(d, r=10**6)


def a_scale_beyond_numbers(d: Path) -> None:
    """Claim an alpha that makes every product infinite."""
    _config(d, lora_alpha=1e300)


def another_method(d: Path) -> None:
    """Claim another kind of adapter."""
    _config(d, peft_type="PREFIX_TUNING")


def no_config(d: Path) -> None:
    """Leave adapter_config.json out."""
    (d / "adapter_config.json").unlink()


def nothing(d: Path) -> None:
    """Leave everything out."""
    shutil.rmtree(d)


WAYS = (
    wrong_base,
    wrong_rank,
    truncated,
    not_a_number,
    infinite,
    a_bomb,
    a_header_bomb,
    traversal,
    a_rank_of_thousands,
    a_scale_beyond_numbers,
    another_method,
    no_config,
    nothing,
)


def requests() -> list[Request]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
    uses = ("lora", None, "dora", "bias-all")
    return [
        Request(tuple(BIASED.prompt[i : i + 12 + 5 * i].tolist()), params, adapter=use) for i, use in enumerate(uses)
    ]


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    """Return copies of sound adapters by their names."""
    return {name: Path(shutil.copytree(path, tmp_path / "good" / name)) for name, path in GOOD.items()}


@pytest.fixture(scope="module")
def undisturbed(reduced: dict[str, Path]) -> list[dict[int, int]]:
    """Return each request's checksums where nothing happens beside."""
    with open_engine(reduced, GOOD) as engine:
        return finish(engine, harness.Recorder(engine), [engine.submit(request) for request in requests()])


def open_engine(reduced: dict[str, Path], adapters: dict[str, Path], **more: object) -> Engine:
    settings = {"model.format": "int4-g64", "adapters.dtype": "int8", **more}
    return harness.engine(reduced["biased"], settings, rows=64, adapters=adapters)


def finish(engine: Engine, recorder: harness.Recorder, streams: list[Any]) -> list[dict[int, int]]:
    assert [stream.result().finish_reason for stream in streams] == ["length"] * len(streams)
    return [recorder.of(i) for i in range(len(streams))]


def start(engine: Engine) -> tuple[harness.Recorder, list[Any]]:
    """Submit the requests and run until all of them decode."""
    recorder = harness.Recorder(engine)
    streams = [engine.submit(request) for request in requests()]
    while len({request for request, _ in recorder.rows}) < len(streams):
        assert engine.step()
    return recorder, streams


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_broken_adapter_does_not_touch_the_running_batch(
    way: Callable[[Path], None],
    tmp_path: Path,
    adapters: dict[str, Path],
    undisturbed: list[dict[int, int]],
    reduced: dict[str, Path],
) -> None:
    """Whether it is read at once or for its first request, which fails alone."""
    bad = Path(shutil.copytree(GOOD["lora"], tmp_path / "bad"))
    with open_engine(reduced, adapters) as engine:
        engine.adapters.load("lazy", bad)
        way(bad)
        recorder, streams = start(engine)
        with pytest.raises(AdapterError) as caught:
            engine.adapters.load("bad", bad, pin=True)
        assert str(bad) in str(caught.value) and caught.value.why
        assert engine.step()
        with pytest.raises(RequestError, match="bad"):  # it has no name afterwards
            engine.submit(Request((5, 6, 7), adapter="bad"))
        assert "bad" not in {info.name for info in engine.adapters.infos()}
        first = engine.submit(Request((5, 6, 7), adapter="lazy"))
        with pytest.raises(AdapterError):
            first.result()
        assert finish(engine, recorder, streams) == undisturbed


def test_unloading_in_use_lets_requests_finish_as_they_began(
    adapters: dict[str, Path], undisturbed: list[dict[int, int]], reduced: dict[str, Path]
) -> None:
    with open_engine(reduced, adapters) as engine:
        recorder, streams = start(engine)
        for name in ("lora", "dora"):
            engine.adapters.unload(name)
        with pytest.raises(RequestError, match="lora"):
            engine.submit(Request((5, 6, 7), adapter="lora"))
        with pytest.raises(AdapterError, match="lora"):
            engine.adapters.unload("lora")
        assert finish(engine, recorder, streams) == undisturbed


def test_reloading_in_use_changes_only_later_requests(
    adapters: dict[str, Path], undisturbed: list[dict[int, int]], reduced: dict[str, Path]
) -> None:
    with open_engine(reduced, adapters) as engine:
        recorder, streams = start(engine)
        shutil.copy(GOOD["thin"] / WEIGHTS, adapters["lora"] / WEIGHTS)
        shutil.copy(GOOD["thin"] / "adapter_config.json", adapters["lora"] / "adapter_config.json")
        engine.adapters.reload("lora")
        later = [
            engine.submit(Request(requests()[0].prompt, requests()[0].params, adapter=use)) for use in ("lora", "thin")
        ]
        *old, reloaded, thin = finish(engine, recorder, [*streams, *later])
        assert old == undisturbed
        assert reloaded == thin  # what it holds now
        assert reloaded != undisturbed[0]


@pytest.mark.parametrize("way", [truncated, not_a_number], ids=lambda way: way.__name__)
def test_reloading_a_broken_adapter_keeps_the_loaded_one(
    way: Callable[[Path], None],
    adapters: dict[str, Path],
    undisturbed: list[dict[int, int]],
    reduced: dict[str, Path],
) -> None:
    with open_engine(reduced, adapters) as engine:
        recorder, streams = start(engine)
        way(adapters["lora"])
        with pytest.raises(AdapterError):
            engine.adapters.reload("lora")
        again = engine.submit(requests()[0])
        *old, later = finish(engine, recorder, [*streams, again])
        assert old == undisturbed
        assert later == undisturbed[0]


def test_adapters_that_evict_each_other_keep_their_bytes(
    adapters: dict[str, Path], undisturbed: list[dict[int, int]], reduced: dict[str, Path]
) -> None:
    """Three adapters in a memory for one: requests wait for each other, and nobody gets another one's output."""
    with open_engine(reduced, adapters, **{"adapters.max_resident": 1}) as engine:
        recorder = harness.Recorder(engine)
        streams = [engine.submit(request) for request in requests()]
        assert finish(engine, recorder, streams) == undisturbed
