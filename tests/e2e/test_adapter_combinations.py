"""What combines with what: kinds of adapters within one adapter, in one request, and with everything else.

Each cell of the tables of docs/adapters.md is a case here: it works, with equal bytes alone and beside all other kinds,
or it is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from adapter_kinds import INVOCATION, KINDS, PROMPT, write_adapter, write_model
from engine_parts import preempting
from infeng_gguf.adapter_writer import write_gguf_adapter
from infeng_peft.adapter import read_peft

from infeng_core import Engine, SamplingParams
from infeng_core.errors import AdapterError, InfengError, RequestError

pytest.importorskip("infeng_grammar", reason="the grammar wheel is not installed")

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logits=True)
SETTINGS: Mapping[str, object] = {
    "threads.count": 1,
    "model.format": "f32",
    "model.formats": {},
    "kv_cache.dtype": "f32",
    "kv_cache.memory": "8MB",
    "kv_cache.prefix": False,
    "adapters.dtype": "f32",
    "adapters.max_resident": 24,
}
WHOLE = "its weight can only be 1"
GGUF = "llama.cpp applies plain LoRA only"
LINEARS = "PEFT does not define"
TOKENS_BEFORE = "it would change the tokens before these too"

WITHIN: Mapping[frozenset[str], str] = {
    frozenset(pair): reason
    for reason, pairs in {
        LINEARS: [
            *[("aLoRA", other) for other in ("DoRA", "embedding", "experts")],
            *[("DoRA", other) for other in ("lora_bias", "experts")],
            *[("lora_bias", "experts"), ("embedding", "trained tokens")],
        ],
        TOKENS_BEFORE: [("aLoRA", other) for other in ("bias", "trained tokens", "saved modules")],
    }.items()
    for pair in pairs
}
"""Two kinds in one adapter that are refused, and the reason."""

IN_ONE_REQUEST: Mapping[frozenset[str], str] = {
    frozenset(["trained tokens"]): "both replace the embedding of token",
    frozenset(["saved modules"]): "each replaces modules of the base",
    frozenset(["trained tokens", "saved modules"]): "single rows of its embedding",
}
"""Adapters of two kinds, or two of one kind, that one request cannot have, and the reason."""

FEATURES: Mapping[str, Mapping[str, str]] = {
    "mixed batch": {},
    "weight 0.5": dict.fromkeys(("DoRA", "lora_bias", "bias", "trained tokens", "saved modules"), WHOLE),
    "embed": {},
    "score": {},
    "speculation": {},
    "prefix cache": {},
    "saved prefixes": {},
    "preemption": {},
    "grammar": {},
    "4-bit base": {},
    "8-bit cache": {},
    "artifact": {},
    "GGUF": {
        **dict.fromkeys(("DoRA", "lora_bias", "bias", "trained tokens", "saved modules"), GGUF),
        "experts": "is not written to GGUF",
    },
}
"""Everything that adapters are used with; of each the kinds that are refused, and the reason."""


def facts(one: Any) -> tuple[object, ...]:
    """Return tokens and the bytes of the logits of a completion."""
    return one.token_ids, one.text, None if one.logits is None else [row.tobytes() for row in one.logits]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of all kinds."""
    return write_model(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of each kind, "DoRA" and "DoRA-2", with names that requests may have."""
    folder = tmp_path_factory.mktemp("kinds")
    seeds = {"": 1, "-2": 2}
    return {
        name(kind) + end: write_adapter(folder / (name(kind) + end), {kind}, seed)
        for kind in KINDS
        for end, seed in seeds.items()
    }


def name(kind: str) -> str:
    """Return the name of a kind's adapter."""
    return kind.replace(" ", "-")


Open = Callable[..., Engine]


@pytest.fixture(scope="module")
def opened(model: Path, paths: dict[str, Path]) -> Iterator[Open]:
    """Return ``opened(section__key=value, ...)``: an engine that knows an adapter of each kind, made once."""
    engines: dict[str, Engine] = {}

    def get(**settings: object) -> Engine:
        key = repr(settings)
        if key not in engines:
            overrides = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
            engines[key] = Engine(model, overrides=overrides, adapters={k: str(path) for k, path in paths.items()})
        return engines[key]

    yield get
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def alone(opened: Open) -> Callable[[str | None], tuple[object, ...]]:
    """Return what a kind gives by itself in an engine in f32."""
    known: dict[str | None, tuple[object, ...]] = {}

    def get(adapter: str | None) -> tuple[object, ...]:
        if adapter not in known:
            known[adapter] = facts(opened().generate([PROMPT], GREEDY, adapters=adapter)[0])
        return known[adapter]

    return get


def mixed(engine: Engine, kind: str, params: SamplingParams = GREEDY) -> Any:
    """Return the completion of a kind in one batch with all other kinds and the base."""
    uses: list[Any] = [None, *map(name, KINDS)]
    return engine.generate([PROMPT] * len(uses), params, adapters=uses)[1 + KINDS.index(kind)]


def same_everywhere(engine: Engine, kind: str) -> None:
    """Compare a kind alone with the same in a batch, and with the base."""
    by_itself, plain = (facts(engine.generate([PROMPT], GREEDY, adapters=one)[0]) for one in (name(kind), None))
    assert facts(mixed(engine, kind)) == by_itself != plain


# ------------------------------------------------------------------------------------------------- features of each ---


Cell = Callable[..., None]


def mixed_batch(kind: str, opened: Open, alone: Any, **_: Any) -> None:
    assert facts(mixed(opened(), kind)) == alone(name(kind)) != alone(None)
    pieces = opened(scheduler__max_batch_tokens=7)
    assert facts(mixed(pieces, kind)) == alone(name(kind))


def weight(kind: str, opened: Open, alone: Any, **_: Any) -> None:
    [half] = opened().generate([PROMPT], GREEDY, adapters=[((name(kind), 0.5),)])
    assert facts(half) not in (alone(name(kind)), alone(None))
    both = opened().generate([PROMPT] * 2, GREEDY, adapters=[((name(kind), 0.5),), name(kind)])
    assert [facts(one) for one in both] == [facts(half), alone(name(kind))]


def embed(kind: str, opened: Open, **_: Any) -> None:
    uses = [None, *map(name, KINDS)]
    found = opened().embed([PROMPT] * len(uses), adapters=uses)
    [by_itself] = opened().embed([PROMPT], adapters=name(kind))
    place = 1 + KINDS.index(kind)
    assert np.array_equal(found[place], by_itself)
    # The head changes no hidden state: such an adapter's other modules do.
    assert not np.array_equal(found[place], found[0])


def score(kind: str, opened: Open, **_: Any) -> None:
    prompt, rest = PROMPT[:60], PROMPT[60:]
    found = opened().score(prompt, rest, adapter=name(kind))
    assert found == opened(scheduler__max_batch_tokens=7).score(prompt, rest, adapter=name(kind))
    assert found != opened().score(prompt, rest)


def speculation(kind: str, opened: Open, alone: Any, **_: Any) -> None:
    assert facts(mixed(opened(speculation__use="ngram"), kind)) == alone(name(kind))


def prefix_cache(kind: str, opened: Open, alone: Any, **_: Any) -> None:
    engine = opened(kv_cache__prefix=True)
    for _ in range(2):
        found = mixed(engine, kind)
        assert facts(found) == alone(name(kind))
    assert found.usage.cached_tokens == 64


def saved_prefixes(kind: str, model: Path, paths: Any, alone: Any, tmp_path: Path, **_: Any) -> None:
    overrides = SETTINGS | {"kv_cache.prefix": True, "kv_cache.prefix_dir": str(tmp_path / "saved")}
    adapters = {one: str(paths[one]) for one in (name(kind), "LoRA")}
    for cached in (0, 64):
        with Engine(model, overrides=overrides, adapters=adapters) as engine:
            found = engine.generate([PROMPT] * 3, GREEDY, adapters=["LoRA", name(kind), None])[1]
            assert facts(found) == alone(name(kind))
            assert found.usage.cached_tokens >= cached


def preemption(kind: str, opened: Open, alone: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    engine = opened()
    with monkeypatch.context() as patched:
        scheduler = preempting(engine, patched)
        before = scheduler.preempted
        found = engine.generate([PROMPT] * 4, GREEDY, adapters=[None, name(kind), "aLoRA", name(kind)])
    assert scheduler.preempted > before
    assert [facts(found[place]) for place in (1, 3)] == [alone(name(kind))] * 2


def grammar(kind: str, opened: Open, **_: Any) -> None:
    params = replace(GREEDY, ignore_eos=False, max_tokens=12, processors=(("grammar", {"regex": "[a-f]{3}[0-9]"}),))
    [by_itself] = opened().generate([PROMPT], params, adapters=name(kind))
    found = mixed(opened(), kind, params)
    assert re.fullmatch("[a-f]{3}[0-9]", found.text)
    assert facts(found) == facts(by_itself)


def quantized(kind: str, opened: Open, **_: Any) -> None:
    same_everywhere(opened(model__format="int4-g32", adapters__dtype="int8"), kind)


def cache_format(kind: str, opened: Open, **_: Any) -> None:
    same_everywhere(opened(kv_cache__dtype="int8h"), kind)


def artifact(kind: str, opened: Open, paths: Any, tmp_path: Path, **_: Any) -> None:
    model = opened().model
    made = convert_adapter(paths[name(kind)], tmp_path / "artifact", model, "f32")
    assert load_adapter(made.path, model, "f32").id == load_adapter(paths[name(kind)], model, "f32").id


def gguf(kind: str, opened: Open, paths: Any, tmp_path: Path, **_: Any) -> None:
    model, path = opened().model, tmp_path / "a.gguf"
    write_gguf_adapter(read_peft(paths[name(kind)], model.config), model.config, path, "f32")
    found, wanted = load_adapter(path, model, "f32"), load_adapter(paths[name(kind)], model, "f32")
    assert (found.tensors.keys(), found.invocation) == (wanted.tensors.keys(), wanted.invocation)
    assert (found.embedding is None) == (wanted.embedding is None)


CELLS: Mapping[str, Cell] = dict(
    zip(
        FEATURES,
        (
            *(mixed_batch, weight, embed, score, speculation, prefix_cache, saved_prefixes, preemption, grammar),
            *(quantized, cache_format, artifact, gguf),
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_works_with_everything_or_is_refused_by_name(
    kind: str,
    feature: str,
    opened: Open,
    alone: Any,
    model: Path,
    paths: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"opened": opened, "alone": alone, "model": model, "paths": paths}
    given |= {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    if reason := FEATURES[feature].get(kind):
        with pytest.raises(InfengError, match=re.escape(reason)) as caught:
            CELLS[feature](kind, **given)
        assert caught.value.remedy
    else:
        CELLS[feature](kind, **given)


# ------------------------------------------------------------------------------------------------------ two of them ---


@pytest.mark.parametrize(("first", "second"), [*combinations(KINDS[1:], 2)])
def test_two_kinds_are_read_from_one_adapter_or_refused_by_name(
    first: str, second: str, opened: Open, alone: Any, tmp_path: Path
) -> None:
    path, reason = write_adapter(tmp_path / "both", {first, second}), WITHIN.get(frozenset([first, second]))
    engine = opened()
    engine.adapters.load("both", str(path))
    try:
        if reason:
            with pytest.raises(AdapterError, match=re.escape(reason)) as caught:
                engine.generate([PROMPT], GREEDY, adapters="both")
            assert caught.value.remedy
            return
        [by_itself] = engine.generate([PROMPT], GREEDY, adapters="both")
        found = engine.generate([PROMPT] * 4, GREEDY, adapters=[None, "both", name(first), name(second)])
        assert facts(found[1]) == facts(by_itself)
        assert [facts(found[2]), facts(found[3])] == [alone(name(first)), alone(name(second))]
        assert len({repr(facts(one)) for one in found}) == 4
    finally:
        engine.adapters.unload("both")


@pytest.mark.parametrize(("first", "second"), [*combinations(KINDS, 2), *((kind, kind) for kind in KINDS)])
def test_adapters_of_two_kinds_are_in_one_request_or_refused_by_name(
    first: str, second: str, opened: Open, alone: Any
) -> None:
    engine, use = opened(), ((name(first), 1.0), (f"{name(second)}-2", 1.0))
    if reason := IN_ONE_REQUEST.get(frozenset([first, second])):
        with pytest.raises(RequestError, match=re.escape(reason)) as caught:
            engine.generate([PROMPT], GREEDY, adapters=[use])
        assert caught.value.remedy
        return
    [by_itself] = engine.generate([PROMPT], GREEDY, adapters=[use])
    found = engine.generate([PROMPT] * 3, GREEDY, adapters=[name(first), use, None])
    assert facts(found[1]) == facts(by_itself)
    assert [facts(found[0]), facts(found[2])] == [alone(name(first)), alone(None)]
    assert len({repr(facts(one)) for one in found}) == 3


def test_adapters_of_experts_run_beside_activated_ones_of_attention(opened: Open, alone: Any) -> None:
    """Rows lose their order among the experts; those before an invocation stay the base's."""
    before = PROMPT.index(INVOCATION[0])
    told = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    uses = ["experts", "aLoRA", None, (("experts", 1.0), ("aLoRA", 1.0)), "aLoRA"]
    experts, activated, base, both, again = opened(scheduler__max_batch_tokens=23).generate(
        [PROMPT] * 5, told, adapters=uses
    )
    assert activated.prompt_logprobs == again.prompt_logprobs
    assert activated.prompt_logprobs[: before + 1] == base.prompt_logprobs[: before + 1]
    assert activated.prompt_logprobs[before + 1 :] != base.prompt_logprobs[before + 1 :]
    assert both.prompt_logprobs[: before + 1] == experts.prompt_logprobs[: before + 1]
    assert both.prompt_logprobs[before + 1 :] != experts.prompt_logprobs[before + 1 :]


# ---------------------------------------------------------------------------------------------------- documentation ---

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


def row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def documented() -> list[str]:
    """Return the lines of the page's tables, as they have to be."""
    features = [row("", list(FEATURES)), "|" + "---|" * (1 + len(FEATURES))]
    features += [row(kind, ["no" if kind in refused else "yes" for refused in FEATURES.values()]) for kind in KINDS]
    others = KINDS[1:]
    within = [row("", list(others)), "|" + "---|" * (1 + len(others))]
    refused = [row("", ["", "refused because"]), "|---|---|---|"]
    for kinds, reason in IN_ONE_REQUEST.items():
        first, *rest = sorted(kinds)
        refused.append(row(first, [*(rest or [first]), reason]))
    within += [row(kind, [_cell(WITHIN, kind, other) if kind != other else "" for other in others]) for kind in others]
    return features + within + refused


def _cell(refused: Mapping[frozenset[str], str], one: str, other: str) -> str:
    return "no" if frozenset([one, other]) in refused else "yes"


def test_the_documentation_has_these_tables() -> None:
    lines = PAGE.read_text().splitlines()
    missing = [line for line in documented() if line not in lines]
    assert not missing, "docs/adapters.md lacks:\n" + "\n".join(documented())
