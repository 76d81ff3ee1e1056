"""The parts in Python: formats by packed weights, tokenizers by bytes of text, policies by their order of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infeng_core.api import POLICIES, TOKENIZERS, Plugins, Tokenizer
from infeng_core.api.engines import Limits, RunningRequest
from infeng_core.api.formats import find, format_lookup
from infeng_kit.benches.pairs import Pair, Work
from infeng_kit.checks.policies import request_of

if TYPE_CHECKING:
    from infeng_kit.plan import Plan

MATRIX = (2048, 2048)
"""Outputs and inputs of the matrix that formats pack."""
TEXTS, CHARACTERS = 8, 2048
WAITING, TAKEN = 1000, 8
"""Requests that wait, and how many of the order a step reads."""
LIMITS = Limits(max_rows=512, max_samples=64, max_segments=64, context=4096, kv_blocks=4096)


def pairs(plan: Plan) -> Iterator[Pair]:
    """Yield each part of the plugin beside the engine's default of its kind."""
    plugins = plan.plugins()
    plugin = next(one for one in plugins.manifests if one.name == plan.plugin)
    for name in plugin.names("quant_formats"):
        yield from of_format(plugins, name)
    for name in plugin.names("tokenizers"):
        yield from of_tokenizer(plan, plugins, name)
    for name in plugin.names("policies"):
        yield of_policy(plugins, name)


def of_format(plugins: Plugins, name: str) -> Iterator[Pair]:
    """Yield the packing of a weight format and its unpacking beside those of `int8-row`."""
    lookup, beside = format_lookup(plugins), "int8-row"
    rows, k = MATRIX
    weights = np.random.default_rng(0).standard_normal(MATRIX).astype(np.float32)
    works: dict[str, tuple[Work, Work]] = {}
    for one in (name, beside):
        form = lookup(one)
        packed = np.zeros(rows // 16 * form.panel_bytes(k), np.uint8)
        form.pack(weights, packed)
        pack, unpack = _packing(form, weights, packed)
        works[one] = Work(one, pack), Work(one, unpack)
    for what, own, other in zip(("pack", "unpack"), works[name], works[beside], strict=True):
        yield Pair(f"format {name}", what, beside, own, other, weights.size / 1e6, "M weights/s")


def _packing(form: Any, weights: Any, packed: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    rows, k = weights.shape
    return lambda: form.pack(weights, packed), lambda: form.unpack(packed, 0, rows // 16, k)


def of_tokenizer(plan: Plan, plugins: Plugins, name: str) -> Iterator[Pair]:
    """Yield a tokenizer's encoding of texts and its decoding, beside the engine's on the same model."""
    from infeng_bench.api import made_up

    beside, config = plugins.config.tokenizer.use, plugins.config
    model = plan.tiny() if plan.model is None else Path(find(plan.model, plugins))
    texts = [made_up(np.random.default_rng([0, index]), CHARACTERS) for index in range(TEXTS)]
    made = {one: plugins.get(TOKENIZERS, one)(model, config) for one in (name, beside)}
    ids = {one: tokenizer.encode(texts) for one, tokenizer in made.items()}
    encode = {one: Work(one, _encoding(tokenizer, texts)) for one, tokenizer in made.items()}
    decode = {one: Work(one, _streaming(made[one], ids[one])) for one in made}
    nbytes = sum(len(text.encode()) for text in texts) / 1e6
    yield Pair(f"tokenizer {name}", "encode", beside, encode[name], encode[beside], nbytes, "MB/s")
    # Texts have other numbers of tokens in another vocabulary, but the same bytes.
    yield Pair(f"tokenizer {name}", "decode, token by token", beside, decode[name], decode[beside], nbytes, "MB/s")


def _encoding(tokenizer: Tokenizer, texts: list[str]) -> Callable[[], object]:
    return lambda: tokenizer.encode(texts)


def _streaming(tokenizer: Tokenizer, ids: list[list[int]]) -> Callable[[], object]:
    def stream() -> None:
        for one in ids:
            pieces = tokenizer.detokenizer([])
            for token in one:
                pieces.push(token)
            pieces.finish()

    return stream


def of_policy(plugins: Plugins, name: str) -> Pair:
    """Return a policy's part of a step beside the engine's."""
    beside = plugins.config.scheduler.use
    own, other = (Work(one, _ordering(plugins.get(POLICIES, one)(LIMITS))) for one in (name, beside))
    what = f"a step's order of {WAITING} waiting requests, of which {TAKEN} start and come back"
    return Pair(f"policy {name}", what, beside, own, other)


def _ordering(policy: Any) -> Callable[[], object]:
    """Return a step: the first requests of the order start, and as many wait again."""
    for place in range(WAITING):
        policy.add(request_of(place), 0.0)

    def step() -> None:
        started: list[RunningRequest] = []
        for request in policy.order(1.0):
            started.append(request)
            if len(started) == TAKEN:
                break
        for request in started:
            policy.remove(request, 1.0)
        for request in started:
            policy.add(request, 1.0)

    return step
