"""What a mask costs: published schemas over the 32,000 tokens of Llama 2, walked along the instances that fit them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_grammar.processor import Grammars
from infeng_tokenizers.api import HfTokenizer

from infeng_core.api import EngineConfig, RequestError, Vocabulary

DATA = Path(os.environ.get("INFENG_TEST_DATA", ""))


def walks(grammars: Grammars) -> list[tuple[Any, list[int]]]:
    """Return the argument and the tokens of every valid instance of every schema."""
    found = []
    for path in sorted((DATA / "jsonschemabench").rglob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        for case in document["tests"]:
            if case["valid"]:
                text = json.dumps(case["data"], ensure_ascii=False)
                ids = grammars._known().library.tokenize_str(text)
                found.append(({"json_schema": document["schema"]}, ids))
    return found


def timed(call: Any) -> tuple[float, Any]:
    """Return the microseconds of processor time that ``call`` takes, and what it returns."""
    begin = time.thread_time_ns()
    result = call()
    return (time.thread_time_ns() - begin) / 1e3, result


@pytest.mark.skipif(not (DATA / "jsonschemabench").is_dir(), reason="INFENG_TEST_DATA names no such folder")
def test_masks_of_published_schemas(benchmark: Any) -> None:
    """Prints percentiles in microseconds of making a request's processor, of a mask, a token, what is forced."""
    directory = DATA / "tokenizer-tinyllama"
    grammars = Grammars(Vocabulary(HfTokenizer(directory, EngineConfig()), 32000, (2,), directory))
    cases = walks(grammars)

    spent: dict[str, list[float]] = defaultdict(list)

    def walk(title: str, argument: Any, ids: list[int]) -> None:
        cost, processor = timed(lambda: grammars.make(argument, ()))
        spent[f"{title} make"].append(cost)
        for token in ids:
            cost, row = timed(lambda: processor.row(()))
            assert int(row.allowed[token // 32]) >> token % 32 & 1
            spent[f"{title} mask"].append(cost)
            spent[f"{title} token"].append(timed(lambda token=token: processor.extend((token,)))[0])
            spent[f"{title} forced"].append(timed(processor.forced)[0])

    def walks_of_all() -> None:
        for argument, ids in cases:
            with contextlib.suppress(RequestError):
                for title in ("first", "again"):
                    walk(title, argument, ids)

    benchmark.pedantic(walks_of_all, rounds=1)
    for name, costs in spent.items():
        figures = np.percentile(costs, (50, 90, 99, 99.9, 100))
        benchmark.extra_info[name] = figures.tolist()
        print(f"{name:12} n {len(costs):6}   p50 p90 p99 p99.9 max:", *(f"{figure:9.1f}" for figure in figures), "us")
