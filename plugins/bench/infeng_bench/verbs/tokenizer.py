"""`infeng bench tokenizer`: encoding, and decoding token by token."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import find

from infeng_bench import options
from infeng_bench.load.texts import made_up
from infeng_bench.reports import results
from infeng_bench.stats.summary import spread
from infeng_core.api import TOKENIZERS, Plugins, Tokenizer, UsageError

NAME = "tokenizer"

ROUNDS = 5
TEXTS, CHARACTERS = 64, 4096


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--file", str, None, "FILE", "text to encode (default: made up, from the seed)")
    options.add(parser, "--texts", options.positive, TEXTS, "N", "how many prompts")
    options.add(parser, "--characters", options.positive, CHARACTERS, "N", "characters of each")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    config = options.config(arguments)
    name = options.model_name(arguments)
    texts, plugins = _texts(arguments), Plugins.discover(config)
    if arguments.model is None:
        from infeng_bench.models import synthetic

        directory = synthetic.hf_directory(arguments.synthetic)
    else:
        directory = find(arguments.model, plugins)
    tokenizer = plugins.get(TOKENIZERS, config.tokenizer.use)(directory, config)
    nbytes = sum(len(text.encode()) for text in texts)
    ids = tokenizer.encode(texts)  # warms up threads and caches
    tokens = sum(map(len, ids))
    together, single, streaming = [], [], []
    for _ in range(arguments.rounds):
        together.append(_seconds(lambda: tokenizer.encode(texts)))
        single.append(_seconds(lambda: [tokenizer.encode([text]) for text in texts]))
        streaming.append(_seconds(lambda: _stream(tokenizer, ids)))
    encode, alone, decode = spread(together), spread(single), spread(streaming)
    figures: dict[str, Any] = {
        "texts": len(texts),
        "text_bytes": nbytes,
        "text_tokens": tokens,
        "encode_seconds": encode,
        "encode_bytes_per_s": nbytes / encode["median"],
        "encode_tokens_per_s": tokens / encode["median"],
        "encode_one_by_one_bytes_per_s": nbytes / alone["median"],
        "decode_seconds": decode,
        "decode_tokens_per_s": tokens / decode["median"],
    }
    result = results.record(
        NAME,
        figures,
        model=name,
        tokenizer=config.tokenizer.use,
        threads=config.tokenizer.threads,
        seed=arguments.seed,
        rounds=arguments.rounds,
    )
    rows = [
        ["encode, all at once", f"{figures['encode_bytes_per_s'] / 1e6:.2f} MB/s"],
        ["", f"{figures['encode_tokens_per_s']:.0f} tokens/s"],
        ["encode, one by one", f"{figures['encode_one_by_one_bytes_per_s'] / 1e6:.2f} MB/s"],
        ["decode, token by token", f"{figures['decode_tokens_per_s']:.0f} tokens/s"],
        ["", f"{1e6 / figures['decode_tokens_per_s']:.2f} us a token"],
    ]
    return options.deliver(result, arguments, options.columns(rows))


def _texts(arguments: argparse.Namespace) -> list[str]:
    """Return random texts, or pieces of the file, which is repeated if it is too short."""
    count, size = arguments.texts, arguments.characters
    if arguments.file is None:
        return [made_up(np.random.default_rng([arguments.seed, index]), size) for index in range(count)]
    try:
        text = Path(arguments.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(arguments.file, error.strerror or str(error), "give a text file") from error
    except UnicodeDecodeError as error:
        raise UsageError(arguments.file, f"byte {error.start} is not UTF-8", "convert the file to UTF-8") from error
    if not text:
        raise UsageError(arguments.file, "is empty", "give a text file")
    text *= -(-count * size // len(text))
    return [text[index * size : (index + 1) * size] for index in range(count)]


def _stream(tokenizer: Tokenizer, ids: list[list[int]]) -> None:
    for part in ids:
        detokenizer = tokenizer.detokenizer([])
        for token in part:
            detokenizer.push(token)
        detokenizer.finish()


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
