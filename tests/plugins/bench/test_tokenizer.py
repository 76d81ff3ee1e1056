"""`infeng bench tokenizer`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.load.texts import made_up

from infeng_core.cli import main


def tokenizer(out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb and return its result."""
    command = ["bench", "tokenizer", "--synthetic", str(config), "--rounds", "2", "--texts", "3", "--characters", "50"]
    assert main([*command, "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def test_rates_follow_from_bytes_tokens_and_times(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    result = tokenizer(tmp_path / "out.json", tiny_config)
    schema(result)
    assert result["texts"] == 3
    assert result["text_bytes"] == result["text_tokens"] >= 150  # this tokenizer has one id per byte
    assert result["encode_bytes_per_s"] == pytest.approx(result["text_bytes"] / result["encode_seconds"]["median"])
    assert result["decode_tokens_per_s"] == pytest.approx(result["text_tokens"] / result["decode_seconds"]["median"])


def test_a_short_file_is_repeated(tiny_config: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("größer ")
    result = tokenizer(tmp_path / "out.json", tiny_config, "--file", str(tmp_path / "text"))
    assert result["text_bytes"] == len(("größer " * 30)[:150].encode())


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "is empty"), (b"a\xff", "byte 1 is not UTF-8"), (None, "No such file")]
)
def test_a_file_that_is_no_text_is_an_error(
    tiny_config: Path, tmp_path: Path, data: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if data is not None:
        (tmp_path / "text").write_bytes(data)
    assert main(["bench", "tokenizer", "--synthetic", str(tiny_config), "--file", str(tmp_path / "text")]) == 2
    assert said in capsys.readouterr().err


def test_generated_text_has_its_length_and_is_the_same_for_a_seed() -> None:
    texts = [made_up(np.random.default_rng(seed), 500) for seed in (1, 1, 2)]
    assert [len(text) for text in texts] == [500, 500, 500]
    assert texts[0] == texts[1] != texts[2]
