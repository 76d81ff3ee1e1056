"""Mixtures of experts: the same bytes in any company, weights that no row wants, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from goldens.families import GPT_OSS, GRANITE_MOE, QWEN3_MOE
from infeng_convert.api import parse_config
from infeng_convert.survey import survey
from safetensors.numpy import load_file, save_file

from infeng_core import Engine, SamplingParams
from infeng_core.errors import ModelError
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format
from infeng_core.models.config import ModelConfig
from infeng_core.requests.request import Request

INT8 = {"model.format": "int8-row", "kv_cache.dtype": "int8"}
PROMPT = tuple(QWEN3_MOE.prompt[:90].tolist())
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=8, ignore_eos=True)


def rows_of(directory: Path, others: int, threads: int, rows: int) -> dict[int, int]:
    """Return checksums of a request's logits by position, among ``others`` other requests."""
    with harness.engine(directory, INT8, harness.IMPLEMENTATIONS[VECTOR], threads=threads, rows=rows) as engine:
        recorder = harness.Recorder(engine)
        prompts = [QWEN3_MOE.prompt[11 * i : 40 + 17 * i].tolist() for i in range(others)]
        sampling = SamplingParams(temperature=1, seed=1, max_tokens=10, ignore_eos=True)
        engine.generate([*(Request(tuple(prompt), sampling) for prompt in prompts), Request(PROMPT, PARAMS)])
        return recorder.of(others)


@pytest.mark.slow
def test_a_request_has_the_same_bytes_in_any_batch_on_any_threads_in_any_chunks(mixture: Path) -> None:
    alone = rows_of(mixture, 0, 1, 512)
    assert len(alone) == PARAMS.max_tokens
    assert rows_of(mixture, 5, 2, 33) == alone


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4-g64", "int4-g32", "int4-p32", "int5-p32", "int6-p32", "bf16"])
def test_every_format_of_experts_gives_the_bytes_of_the_reference(format: str, mixture: Path) -> None:
    found = []
    for implementation in (VECTOR, "reference"):
        with harness.engine(mixture, {"model.format": format}, harness.IMPLEMENTATIONS[implementation]) as engine:
            assert {line.library for line in engine.executable.bound() if line.op in ("route", "linear")} == {
                implementation
            }
            found.append(harness.logits(engine, PROMPT, range(0, len(PROMPT), 3), chunks=2))
    np.testing.assert_array_equal(found[0], found[1])


def test_the_router_is_quantized_only_if_the_settings_name_it(mixture: Path) -> None:
    config = parse_config(QWEN3_MOE.config, "config.json")

    def formats(base: str, **patterns: str) -> dict[str, str]:
        return FormatChoice(base, patterns).for_model(config, builtin_format)

    assert formats("int4-g64")["layers.0.router"] == "bf16"
    assert formats("f32")["layers.0.router"] == "f32"
    assert formats("int4-g64", **{"layers.*.router": "int8-row"})["layers.0.router"] == "int8-row"
    assert formats("int4-g64")["layers.0.experts.gate_up_proj"] == "int4-g64"
    assert "layers.1.router" not in formats("f32") and "layers.1.gate_up_proj" in formats("f32")


def test_stacked_and_separate_tensors_of_experts_give_equal_logits(
    mixture_engine: Engine, mixture: Path, tmp_path: Path
) -> None:
    tensors = load_file(mixture / "model.safetensors")
    for layer in (0, 2):
        name = f"model.layers.{layer}.mlp.experts"
        parts = [[tensors.pop(f"{name}.{e}.{part}_proj.weight") for part in ("gate", "up", "down")] for e in range(9)]
        tensors[f"{name}.gate_up_proj"] = np.stack([np.concatenate(one[:2]) for one in parts])
        tensors[f"{name}.down_proj"] = np.stack([one[2] for one in parts])
    whole = QWEN3_MOE.write(tmp_path / "whole")
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    expected = harness.logits(mixture_engine, PROMPT, range(len(PROMPT)))
    with harness.engine(whole, settings(QWEN3_MOE, VECTOR)) as other:
        np.testing.assert_array_equal(harness.logits(other, PROMPT, range(len(PROMPT))), expected)


def test_a_matrix_of_an_expert_equals_the_checkpoint(mixture_engine: Engine, mixture: Path) -> None:
    tensors = load_file(mixture / "model.safetensors")
    for name in ("model.layers.2.mlp.experts.8.up_proj.weight", "model.layers.0.mlp.experts.3.down_proj.weight"):
        np.testing.assert_array_equal(mixture_engine.model.matrix(name), tensors[name])


UNREAD = """
import ctypes, mmap, sys
import numpy as np
from infeng_core import _native as native
from infeng_kit.cases import reference
library = native.open_library(sys.argv[1]) if len(sys.argv) > 1 else reference()
ROWS, EXPERTS, K = 3, 4, 1024
kernel = {}
for op, fields in (("linear", {"weight": "f32", "act": "f32", "n": 16, "k": K}),
                   ("route", {"act": "f32", "k": K, "experts": EXPERTS, "top_k": 1})):
    problem = native.Problem(op, rows=(1, ROWS), workers=1, **fields)
    kernel[op] = [(ROWS, next(k for k in library.kernels if k.op == op and k.accepts(problem)))]
size = native.panel_bytes("f32", K)
arena = native.Arena(EXPERTS * size, huge_pages=False)
memory = np.asarray(memoryview(arena)).view(np.float32)
memory[:] = 1
program = native.Program(native.Pool(1), max_rows=ROWS, max_samples=1, max_segments=1, context=16)
logits, x = program.buffer(EXPERTS), program.buffer(K)
copies, out = program.buffer(K, copies=1), program.buffer(16, copies=1)
routing = program.routing(experts=EXPERTS, top_k=1)
program.route(kernel["route"], logits, x, copies, routing=routing, columns=K, share_of_chosen=True)
program.expert_linear(kernel["linear"], native.Weight("f32", EXPERTS * 16, K, EXPERTS, size, arena), copies, out,
                      routing=routing)
program.finish()
program.view(x)[:] = np.arange(ROWS)[:, None]
program.view(logits)[:] = [[0, 0, 5, 0], [7, 0, 0, 0], [0, 0, 5, 0]]
libc = ctypes.CDLL(None, use_errno=True)
for unused in (1, 3):  # whoever reads them dies
    assert size % mmap.PAGESIZE == 0 and memory.ctypes.data % mmap.PAGESIZE == 0
    assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + unused * size), ctypes.c_size_t(size), 0) == 0
rows = np.arange(ROWS, dtype=np.int32)
program.run(rows * 0, rows, np.zeros((0, 4), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32))
chosen, weights, places, begin = program.view_routing(routing)
assert chosen.ravel().tolist() == [2, 0, 2] and begin.ravel().tolist() == [0, 1, 1, 3, 3]
assert places.ravel().tolist() == [1, 0, 2] and weights.ravel().tolist() == [1, 1, 1]
assert program.view(out)[:, 0].tolist() == [K, 0, 2 * K]
"""


def test_sinks_count_once_however_a_prompt_is_chunked(tmp_path: Path) -> None:
    with harness.engine(GPT_OSS.write(tmp_path / "model"), settings(GPT_OSS, VECTOR)) as engine:
        rows = range(0, len(GPT_OSS.prompt), 3)
        whole = harness.logits(engine, GPT_OSS.prompt, rows)
        for chunks in (2, 9):
            np.testing.assert_array_equal(harness.logits(engine, GPT_OSS.prompt, rows, chunks), whole)


def test_an_expert_without_rows_is_never_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREAD], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_survey_counts_the_active_parameters_of_a_token(mixture: Path) -> None:
    made = survey(mixture, FormatChoice("f32"), builtin_format)
    idle = 2 * 6 * 3 * 40 * 72  # of two layers, six of nine experts
    assert made.why_not == "" and made.parameters - made.active_parameters == idle


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("num_experts_per_tok", 10, "num_experts_per_tok.*from 1 to 9"),
        ("num_experts", 0, "num_experts.*from 1 to 4096"),
        ("shared_expert_intermediate_size", 64, "shared_expert_intermediate_size is 64, which family qwen3_moe"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(key: str, value: int, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        parse_config({**QWEN3_MOE.config, key: value}, "config.json")


def test_a_config_is_read_back_as_it_was_written() -> None:
    for case in (QWEN3_MOE, GRANITE_MOE):
        config = parse_config(case.config, "config.json")
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())), "manifest") == config
    assert parse_config(QWEN3_MOE.config, "config.json").dense_layers == (1,)
