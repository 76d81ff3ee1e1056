"""An engine whose kernels compute on a GPU gives the bytes of others; the GPU is emulated, unless the run names one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, Recorder, preempting
from goldens.adapted import ADAPTED, STEPS

from infeng_core import SamplingParams
from infeng_core.backends.interface import BlockAccess
from infeng_core.cli import main
from infeng_core.errors import PluginError, ResourceError, UsageError

PROMPTS = ["the quick brown fox", "1 2 3 4 5", "héllo wörld", "jumps over the lazy dog, " * 12]
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=10, ignore_eos=True)
FORMATS = ("int4-p32-arow-h256", "int4-g64", "int8-row", "bf16", "f32", "int4-a256", "int5-p32")
CACHES = ("int8", "f16", "fp8h", "int4hi", "k8v4h", "int8i")


@pytest.fixture
def on_device(make_engine: MakeEngine, device: str) -> MakeEngine:
    """Return ``make`` for engines on the GPU."""

    def make(*args: Any, **settings: Any) -> Any:
        return make_engine(*args, backend__use="cuda", cuda__device=device, **settings)

    return make


def logits(engine: Any, prompts: list[str], **more: Any) -> dict[int, list[bytes]]:
    recorder = Recorder(engine)
    engine.generate(prompts, SAMPLED, **more)
    return dict(recorder.logits)


@pytest.mark.slow
@pytest.mark.parametrize("kv", CACHES)
def test_logits_equal_those_of_the_native_backend(make_engine: MakeEngine, on_device: MakeEngine, kv: str) -> None:
    format = FORMATS[CACHES.index(kv)]
    settings = {"model__format": format, "kv_cache__dtype": kv, "scheduler__max_batch_tokens": 48}
    assert logits(on_device(**settings), PROMPTS) == logits(make_engine(**settings), PROMPTS)


@pytest.mark.slow
def test_adapters_of_a_mixed_batch_and_a_norm_of_their_own(
    make_engine: MakeEngine, on_device: MakeEngine, tmp_path: Path
) -> None:
    paths = [tiny_adapter.write(tmp_path / str(seed), seed, rank=3 + seed, norm=seed == 1) for seed in range(3)]
    for dtype in ("int8", "bf16"):
        found = []
        for make in (make_engine, on_device):
            engine = make(adapters__dtype=dtype)
            for path in paths:
                engine.adapters.load(path.name, path)
            found.append(logits(engine, PROMPTS, adapters=["0", "1", "2", None]))
        assert found[0] == found[1]


@pytest.mark.slow
def test_single_trained_tokens_give_the_tokens_of_peft(on_device: MakeEngine, tmp_path: Path) -> None:
    [case] = [one for one in ADAPTED if one.name == "tokens-tied"]
    formats = {"model__format": "f32", "model__formats": {}, "kv_cache__dtype": "f32", "adapters__dtype": "f32"}
    engine = on_device(case.base.write(tmp_path / "base"), **formats, adapters__paths={"mine": str(case.directory)})
    greedy = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
    found = engine.generate(case.prompts, greedy, adapters="mine")
    assert [list(one.token_ids) for one in found] == case.expected()["greedy"].tolist()


def test_preempted_requests_go_on_with_the_same_tokens(
    make_engine: MakeEngine, on_device: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [output.token_ids for output in make_engine().generate(PROMPTS, SAMPLED)]
    engine = on_device()
    preempting(engine, monkeypatch)
    assert [output.token_ids for output in engine.generate(PROMPTS, SAMPLED)] == expected


def test_cache_blocks_move_between_a_processor_and_a_gpu(make_engine: MakeEngine, on_device: MakeEngine) -> None:
    host, gpu = make_engine(), on_device()
    host.generate([PROMPTS[3]], SAMPLED)
    gpu.generate([PROMPTS[3]], SAMPLED)
    assert isinstance(host.executable, BlockAccess) and isinstance(gpu.executable, BlockAccess)
    assert host.executable.block_layout() == gpu.executable.block_layout()
    blocks = np.arange(4, dtype=np.int32)
    read = host.executable.read_blocks(blocks)
    assert gpu.executable.read_blocks(blocks).tobytes() == read.tobytes()
    gpu.executable.write_blocks(blocks[::-1].copy(), read)
    gpu.executable.copy_blocks(blocks[:1], blocks[1:2])
    moved = gpu.executable.read_blocks(blocks)
    assert moved[3].tobytes() == read[0].tobytes() and moved[1].tobytes() == read[3].tobytes()


def test_hidden_states_equal_those_of_the_native_backend(make_engine: MakeEngine, on_device: MakeEngine) -> None:
    host, gpu = (make().embed([PROMPTS[0]]) for make in (make_engine, on_device))
    assert np.asarray(host[0]).tobytes() == np.asarray(gpu[0]).tobytes()


def test_bound_kernels_are_all_of_the_device(on_device: MakeEngine) -> None:
    libraries = {op.library for op in on_device().executable.bound()}
    assert libraries in ({"cuda"}, {"cuda-emulated"})


def test_native_backend_uses_no_kernel_of_a_device(make_engine: MakeEngine) -> None:
    engine = make_engine(backend__use="native", cuda__device="emulated")
    assert not any("cuda" in op.library for op in engine.executable.bound())


def test_cache_takes_the_memory_of_the_device(on_device: MakeEngine) -> None:
    engine = on_device(kv_cache__memory="4MB")
    assert engine.executable.kv_bytes <= 4 << 20


def test_doctor_names_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "cuda.device=emulated"]) == 0
    assert "cuda-emulated computes on emulated GPU, " in capsys.readouterr().out


def test_a_device_that_does_not_exist_is_named(make_engine: MakeEngine) -> None:
    with pytest.raises(UsageError, match=r"cuda\.device: fast"):
        make_engine(backend__use="cuda", cuda__device="fast")


def test_a_wheel_without_kernels_for_gpus_says_so(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    import infeng_cuda.libraries

    missing = infeng_cuda.libraries.path_of("none")
    monkeypatch.setattr("infeng_cuda.backend.path_of", lambda name: missing)
    with pytest.raises(PluginError, match="built without a compiler for GPUs"):
        make_engine(backend__use="cuda")


def test_a_profile_has_the_time_of_each_op(on_device: MakeEngine) -> None:
    engine = on_device()
    engine.executable.profile(True)
    engine.generate([PROMPTS[0]], dataclasses.replace(SAMPLED, max_tokens=2))
    measured = engine.executable.measured()
    assert measured.steps >= 2 and int(measured.phases["wall_ns"].sum()) > 0


def backend_of(engine: Any) -> str:
    return str(engine.config.backend.use)


def test_the_first_backend_that_can_run_is_used(make_engine: MakeEngine, device: str) -> None:
    assert backend_of(make_engine(backend__order=["cuda", "native"], cuda__device=device)) == "cuda"
    assert backend_of(make_engine(backend__order=["native", "cuda"], cuda__device=device)) == "native"


def test_backends_without_a_device_or_a_wheel_are_passed_over_with_a_note(
    make_engine: MakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPU 999 is missing on every machine."""
    engine = make_engine(backend__order=["cuda", "nobody", "native"], cuda__device="999")
    assert backend_of(engine) == "native"
    notes = [line for line in capsys.readouterr().err.splitlines() if "passed over" in line]
    assert "backend=cuda" in notes[0] and "backend=nobody" in notes[1]


def test_a_gpu_without_room_for_the_model_is_passed_over(
    make_engine: MakeEngine, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infeng_cuda.backend.CudaBackend.available_bytes", lambda self: 4096)
    settings: dict[str, Any] = {"cuda__device": device, "kv_cache__memory": "64MB"}
    with pytest.raises(ResourceError):
        make_engine(backend__order=["cuda"], **settings)
    assert backend_of(make_engine(backend__order=["cuda", "native"], **settings)) == "native"


def test_the_last_backend_of_an_order_that_cannot_run_is_the_error(make_engine: MakeEngine) -> None:
    with pytest.raises(PluginError, match="backend somebody"):
        make_engine(backend__order=["nobody", "somebody"])


def test_doctor_says_which_backends_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    order = ["--set", "backend.order=[cuda, nobody, native]", "--set", "cuda.device=emulated"]
    assert main(["doctor", "--json", *order]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["backends"]}
    assert list(found)[:3] == ["cuda", "nobody", "native"]
    assert found["cuda"]["device"] == "emulated GPU" and found["native"]["device"] == "host"
    assert not found["nobody"]["device"] and "nobody" in found["nobody"]["why"]
    assert main(["doctor", *order]) == 0
    assert "backends, in the order of their trial" in capsys.readouterr().out
