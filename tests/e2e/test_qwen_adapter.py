"""An adapter that somebody trained and published for Qwen2.5-0.5B, over random weights of its shapes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import goldens
import numpy as np
import pytest
from adapter_calls import load_adapter
from e2e import harness
from goldens import environment, oracle
from goldens.adapted import STEPS
from goldens.shapes import Case
from infeng_bench.models import synthetic

from infeng_core import SamplingParams
from infeng_core.requests.request import Request

pytestmark = pytest.mark.slow

SCRIPT = Path(goldens.__path__[0]) / "peft_run.py"


@pytest.fixture(scope="module")
def data() -> Path:
    """Return the folder of test data."""
    data = Path(os.environ.get("INFENG_TEST_DATA", ""))
    if not (data / "lora-qwen2.5-0.5b-r8").is_dir():
        pytest.skip("INFENG_TEST_DATA does not name a folder with lora-qwen2.5-0.5b-r8/")
    return data


def test_all_24_layers_equal_peft_within_tolerance(data: Path, torch_python: Path, tmp_path: Path) -> None:
    """Everything that the adapter touches has its true size; feed-forward and vocabulary are small."""
    adapter = data / "lora-qwen2.5-0.5b-r8"
    config = json.loads((data / "configs/Qwen2.5-0.5B-Instruct.config.json").read_text())
    small = {"intermediate_size": 192, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": None}
    common = {"attention_bias": False, "mlp_bias": False, "torch_dtype": "float32"}
    case = Case("narrow", seed=1, prompt_length=48, config=config | small | common)
    model = str(case.write(tmp_path / "model"))
    prompts = [case.prompt.tolist(), case.prompt[7:16].tolist()]
    names = {"adapted": [[str(adapter), 1.0]], "plain": []}
    jobs = [
        {"run": str(tmp_path / f"{name}.npz"), "model": model, "adapters": adapters, "prompts": prompts}
        for name, adapters in names.items()
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    environment.run(torch_python, SCRIPT, tmp_path / "jobs.json")
    greedy = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)
    with harness.engine(Path(model), harness.F32, threads=2, adapters={"real": adapter}) as engine:
        packed = load_adapter(adapter, engine.model, "f32")
        assert set(packed.tensors) == {f"layers.{i}.qkv_proj" for i in range(24)}
        assert all(tensor.rank == 16 and len(tensor.parts) == 2 for tensor in packed.tensors.values())
        found = {}
        for name in names:
            with np.load(tmp_path / f"{name}.npz") as file:
                found[name] = dict(file)
            uses = harness.applied(engine, [(adapter, 1.0)] if name == "adapted" else [])
            for prompt, expected in zip(prompts, found[name]["logits"], strict=True):
                positions = [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]
                logits = harness.logits(engine, prompt, positions, adapters=uses)
                np.testing.assert_allclose(logits, expected, rtol=0, atol=oracle.TOLERANCE, err_msg=name)
        done = engine.generate([Request(tuple(p), greedy, adapter=name) for name in ("real", None) for p in prompts])
    apart = np.abs(found["adapted"]["logits"] - found["plain"]["logits"])
    assert found["plain"]["logits"].std() >= 1
    assert apart.mean() > 50 * oracle.TOLERANCE  # small beside random weights, and far from rounding
    wanted = [
        (greedy, lead)
        for name in names
        for greedy, lead in zip(found[name]["greedy"], found[name]["lead"], strict=True)
    ]
    for completion, (tokens, lead) in zip(done, wanted, strict=True):
        sure = lead > 2 * oracle.TOLERANCE
        steps = len(sure) if sure.all() else int(sure.argmin())
        assert steps > 4
        assert list(completion.token_ids[:steps]) == tokens[:steps].tolist()


def test_the_whole_model_runs_the_adapter_beside_the_base(data: Path) -> None:
    """In 4 bits, with the true vocabulary: the requests of a batch have the tokens that each has alone."""
    directory = synthetic.native_directory(data / "configs/Qwen2.5-0.5B-Instruct.config.json", "int4-g64")
    adapters = {"real": data / "lora-qwen2.5-0.5b-r8"}
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
    requests = [
        Request(tuple(range(5 + i, 40 + 9 * i)), sampling, adapter=use) for i, use in enumerate(["real", None] * 2)
    ]
    with harness.engine(directory, {"kv_cache.dtype": "int8"}, threads=2, rows=128, adapters=adapters) as engine:
        recorder = harness.Recorder(engine)
        engine.generate(requests)
        for request in requests:
            engine.generate([request])
        for i in range(len(requests)):
            assert recorder.of(i) == recorder.of(len(requests) + i)
            assert len(recorder.of(i)) == sampling.max_tokens
        assert recorder.largest_batch == len(requests)
        engine.generate([Request(requests[0].prompt, sampling)])
        assert recorder.of(2 * len(requests)) != recorder.of(0)  # the adapter does something
