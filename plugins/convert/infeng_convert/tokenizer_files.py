"""A tokenizer.json for models that only have ``tokenizer.model``, from SentencePiece or from tiktoken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from infeng_tokenizers.api import read_settings

from infeng_convert import sentencepiece, tiktoken

MADE = "tokenizer.json"
SOURCE = "tokenizer.model"


def is_needed(names: Mapping[str, bytes]) -> bool:
    """Return whether a model's files, by name, lack a tokenizer.json that can be made."""
    return MADE not in names and SOURCE in names


def with_tokenizer(files: Mapping[str, bytes], family: str, directory: Path) -> dict[str, bytes]:
    """Return a model's files, with a tokenizer.json added if necessary; raises ModelError."""
    if not is_needed(files):
        return dict(files)
    data, path = files[SOURCE], directory / SOURCE
    if tiktoken.is_ranks(data):
        settings = read_settings(files.get("tokenizer_config.json", b"{}"), directory / "tokenizer_config.json")
        document = tiktoken.tokenizer_json(data, settings, family, path)
    else:
        document = sentencepiece.tokenizer_json(data, path)
    return {**files, MADE: json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()}
