"""The memory of Qwen3-30B-A3B, predicted from its published configuration alone."""

import json
from pathlib import Path

import pytest

from infeng_core.cli import main

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json"""

PARAMETERS = 30_532_122_624


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3-30b-a3b")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_a_dry_run_prints_bytes_and_memory(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["convert", str(directory), str(tmp_path / "out"), "--format", "int4-g64", "--dry-run"]
    assert main([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["formats"]["layers.47.router"] == "bf16" and made["formats"]["embed"] == "int8-row"
    assert 15.5e9 < made["nbytes"] < 17.5e9 and 4.2 < made["bits_per_weight"] < 4.6
    experts = 128 * 1536 * 2048 * 4.25 / 8  # of a layer, packed, beside the embedding as it is stored
    assert made["convert_bytes"] == pytest.approx(max(experts, 151936 * 2048) + 2 * 151936 * 2048, rel=0.05)
    assert main(command) == 0
    said = capsys.readouterr()
    assert "of memory" in said.out + said.err and "GB" in said.out + said.err and not (tmp_path / "out").exists()


def test_freed_memory_counts_when_a_large_head_comes_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for tied in (True, False):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
        main(["convert", str(tmp_path), str(tmp_path / "out"), "--format", "int4-g64", "--dry-run", "--json"])
        said[tied] = json.loads(capsys.readouterr().out)["convert_bytes"]
    assert said[False] - said[True] == 2 * 32 * 128 * 2048, "q or o of a layer, which malloc keeps"


def test_a_directory_of_pickles_is_still_refused(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.bin").write_bytes(b"")
    assert main(["convert", str(tmp_path), str(tmp_path / "out"), "--format", "int4-g64", "--dry-run"]) != 0


@pytest.mark.slow
def test_models_prints_active_parameters_and_memory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("--set", "kv_cache.memory=1GB", "--set", "model.load=mmap")
    main(["models", str(directory), "--format", "int4-g64", *memory, "--json"])
    [made] = json.loads(capsys.readouterr().out)
    assert made["parameters"] == PARAMETERS
    assert made["active_parameters"] == PARAMETERS - 48 * 120 * 3 * 768 * 2048
    assert 15.5e9 < made["weight_bytes"] < 17.5e9
    assert made["cache_bytes_per_token"] > 0 and "memory_bytes" in made
