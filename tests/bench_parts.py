"""Fixtures of `infeng bench`: tiny random models, in a cache of their own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.stats import contention

from infeng_core.cli import main

Attempt = Callable[..., tuple[int, str]]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what the tests make out of the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny_config(cache: Path) -> Path:
    """Return a config.json of shapes that take milliseconds."""
    path = cache / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="session")
def wide_config(cache: Path) -> Path:
    """Return a config.json of small shapes that every peer can quantize."""
    path = cache / "wide.json"
    path.write_text(json.dumps({**CONFIG, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024}))
    return path


@pytest.fixture(scope="session")
def moe_config(cache: Path) -> Path:
    """Return a config.json of a mixture of experts that takes milliseconds."""
    path = cache / "moe.json"
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    name = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 16}
    path.write_text(json.dumps({**CONFIG, **name, **experts}))
    return path


@pytest.fixture(scope="session")
def schema() -> Any:
    """Return a check of a result against the JSON Schema of the wheel; it raises on a difference."""
    import jsonschema
    from infeng_bench.reports import results

    loaded = results.schema()
    jsonschema.Draft202012Validator.check_schema(loaded)
    return jsonschema.Draft202012Validator(loaded).validate


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait of this machine, whose cores are shared, keep a ratio from being shown."""
    for name, bound in (("MOST_WAITED", 1.0), ("MOST_STOLEN", 1.0), ("LEAST_SURE", 0.0)):
        monkeypatch.setattr(contention, name, bound)


@pytest.fixture
def attempt(tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> Attempt:
    """Return ``attempt(verb, *arguments)``: the exit status on the tiny model with one thread, and what stderr says."""

    def run(verb: str, *arguments: str) -> tuple[int, str]:
        try:
            status = main(["bench", verb, "--synthetic", str(tiny_config), "-t", "1", *arguments])
        except SystemExit as ended:  # argparse ends that way
            status = int(ended.code or 0)
        return status, capsys.readouterr().err

    return run
