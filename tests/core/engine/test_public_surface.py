"""Public methods accept or refuse arguments of any type by a typed error, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_parts import MakeEngine

from infeng_core.api import Engine, EngineConfig, InfengError, SamplingParams, Stream, load_config
from infeng_core.api.formats import find

P = SamplingParams(max_tokens=2, temperature=0.0)

VALUES: list[Any] = [
    None, 5, -1, 10**400, 1.5, float("nan"), True, "", "x", "x" * 300, "x" * 5000, "a\0b", "\ud800", b"x", [], [[]], {},
    {5: 1}, (), object(), Path("/nope"), Path("/proc/self/mem"), range(3), np.zeros((2, 2)), [None], [("a", 1)],
    "~nouser/x", "/dev/null",
]  # fmt: skip

CALLS: dict[str, Callable[[Engine, Any], Any]] = {
    "generate": lambda e, v: e.generate(v, P),
    "generate, params": lambda e, v: e.generate("a", v),
    "generate, adapters": lambda e, v: e.generate("a", P, adapters=v),
    "stream": lambda e, v: list(e.stream(v, P)),
    "stream, params": lambda e, v: next(e.stream("a", v)),
    "submit": lambda e, v: e.submit(v, P),
    "submit, params": lambda e, v: e.submit("a", v),
    "submit, adapter": lambda e, v: e.submit("a", P, adapter=v),
    "submit, ready": lambda e, v: e.submit("a", P, ready=v).result(),
    "check_room": lambda e, v: e.check_room(v),
    "check_room, coming": lambda e, v: e.check_room(1, coming=v),
    "check_adapters": lambda e, v: e.check_adapters(v),
    "score": lambda e, v: e.score(v, "x"),
    "score, continuation": lambda e, v: e.score("x", v),
    "embed": lambda e, v: e.embed(v),
    "embed, pooling": lambda e, v: e.embed("x", pooling=v),
    "embed, normalize": lambda e, v: e.embed("x", normalize=v),
    "embed, started": lambda e, v: e.embed("x", started=v),
    "cancel": lambda e, v: e.cancel(v),
    "observe": lambda e, v: e.observe(v),
    "tokenize": lambda e, v: e.tokenize(v),
    "adapters.load": lambda e, v: e.adapters.load(v, "/nope"),
    "adapters.load, path": lambda e, v: e.adapters.load("n", v),
    "adapters.load, scale": lambda e, v: e.adapters.load("n", "/", scale=v),
    "adapters.load, pin": lambda e, v: e.adapters.load("n", "/", pin=v),
    "adapters.unload": lambda e, v: e.adapters.unload(v),
    "adapters.pin": lambda e, v: e.adapters.pin(v),
    "adapters.reload": lambda e, v: e.adapters.reload(v),
    "adapters[]": lambda e, v: e.adapters[v],
    "in adapters": lambda e, v: v in e.adapters,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_methods_of_an_engine_accept_or_refuse_any_type(make_engine: MakeEngine, call: Callable[[Engine, Any], Any]):
    engine = make_engine()
    expected = engine.generate("hello", P)[0].token_ids
    refused = 0
    for value in VALUES:
        try:
            answer = call(engine, value)
            if isinstance(answer, Stream):
                answer.cancel()
        except (InfengError, StopIteration):
            refused += 1
        for name in engine.adapters:
            engine.adapters.unload(name)
    assert refused > 0 or call is CALLS["in adapters"]
    assert engine.generate("hello", P)[0].token_ids == expected


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_invalid_constructor_arguments_of_any_type_are_a_typed_error(value: Any, tmp_path: Path):
    for make in (
        lambda: Engine(tmp_path, manifest=value),
        lambda: Engine(tmp_path, overrides=value),
        lambda: Engine(tmp_path, adapters=value),
        lambda: Engine(tmp_path, speculate=value),
        lambda: Engine(tmp_path, config=value),
        lambda: Engine(tmp_path, config=EngineConfig(), plugins=value),
        lambda: Engine(tmp_path, threads=value),
        lambda: Engine(tmp_path, format=value),
        lambda: Engine(value, config=None),
    ):
        with pytest.raises(InfengError):  # of an empty folder as a model, at the latest
            make()
    for ask in (lambda: load_config(value), lambda: load_config(overrides=value), lambda: find(value)):
        try:
            ask()
        except InfengError as error:
            assert str(error)


def test_a_callback_that_cannot_be_called_is_refused_at_once(make_engine: MakeEngine):
    engine = make_engine()
    with pytest.raises(InfengError, match="on_step: 5 cannot be called"):
        engine.start(5)  # type: ignore[arg-type]
    engine.start()
    assert len(engine.generate("a", P)[0].token_ids) > 0
