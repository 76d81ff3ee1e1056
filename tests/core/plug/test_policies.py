"""A policy that raises or gives invalid answers ends one request, or all with its name; the engine goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import odd_plugin
import pytest
import tiny_model

from infeng_core.engine import Engine
from infeng_core.errors import PluginError
from infeng_core.requests.request import Request, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
RAISES = "def raises(*args, **kwargs): raise Odd('by design')\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(quiet_environment: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model, converted once."""
    monkeypatch.setenv("INFENG_CACHE", str(cache))


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with odd_plugin.installer(tmp_path, monkeypatch) as install:
        yield install


def started(tiny: Path, **settings: Any) -> Engine:
    overrides = {"scheduler.use": "odd", **{name.replace("__", "."): value for name, value in settings.items()}}
    engine = Engine(tiny, threads=1, overrides=overrides)
    engine.start()
    return engine


def tokens(tiny: Path) -> tuple[int, ...]:
    with Engine(tiny, threads=1) as engine:
        return engine.generate("the quick", PARAMS)[0].token_ids


TORN = """
class Torn(FirstCome):
    def add(self, request, now):
        if request.request.tenant == "bad":
            self._waiting.append(request)  # in the wrong place, and then:
            raise Odd("by design")
        super().add(request, now)
"""


@pytest.mark.slow
def test_an_add_that_raises_ends_only_its_request(odd, tiny):
    expected = tokens(tiny)
    odd(TORN + "policies = {'odd': Torn}")
    with started(tiny) as engine:
        first = engine.submit(Request("the quick", PARAMS))
        bad = engine.submit(Request("the quick", PARAMS, tenant="bad"))
        second = engine.submit(Request("the quick", PARAMS))
        with pytest.raises(PluginError, match=r"plugin odd: scheduler odd: add\(\) raised Odd: by design"):
            bad.result()
        assert first.result().token_ids == second.result().token_ids == expected
        assert engine.submit(Request("the quick", PARAMS)).result().token_ids == expected
        engine.stop()  # a stream has its end a moment before the scheduler
        assert engine.load().waiting == engine.load().running == 0


# The first request that such a hook is called for ends with its name; what comes later is served, or ends so, too.
HOOKS = [
    ("remove", RAISES + "Policy.remove = raises", "remove() raised Odd"),
    ("order", RAISES + "Policy.order = raises", "order() raised Odd"),
    ("order in the middle", "def order(self, now):\n    yield from self._waiting[:0]\n    raise Odd('by design')\n"
     "Policy.order = order", "order() raised Odd"),
    ("order of strangers", "Policy.order = lambda self, now: [3]", "order() names requests that do not wait"),
    ("order of lists", "Policy.order = lambda self, now: [[]]", "order() raised TypeError"),
    ("order of one twice", "Policy.order = lambda self, now: self._waiting * 2", ""),
    ("active", RAISES + "Policy.active = raises", "active() raised Odd"),
    ("active of strangers", "Policy.active = lambda self, running, now: [3, []]", "active() names others"),
    ("active of what cannot be iterated", "class H:\n    def __iter__(self): raise Odd('by design')\n"
     "Policy.active = lambda self, running, now: H()", "active() raised Odd"),
    ("nobody active", "Policy.active = lambda self, running, now: []", "it has no batch"),
    ("prompts", "Policy.prompts = lambda self, running, now: [3]", ""),
    ("seconds", RAISES + "Policy.seconds = raises", "seconds() raised Odd"),
    ("seconds of text", "Policy.seconds = lambda self, decoding, now: 'x'", "the result of seconds() is 'x'"),
    ("seconds of nan", "Policy.seconds = lambda self, decoding, now: float('nan')", "seconds() returned nan"),
    ("seconds below 0", "Policy.seconds = lambda self, decoding, now: -1.0", "seconds() returned -1.0"),
    ("served", RAISES + "Policy.served = raises", "served() raised Odd"),
    ("ended", RAISES + "Policy.ended = raises", ""),  # all three have their answers by then
    ("a panic", "class Panic(BaseException): pass\ndef panics(*_): raise Panic('deep')\nPolicy.served = panics",
     "served() raised Panic: deep"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words"), [case[1:] for case in HOOKS], ids=[case[0] for case in HOOKS])
def test_a_failing_policy_method_is_named_and_ends_the_requests_in_flight(odd, tiny, code, words):
    odd(code)
    with started(tiny) as engine:
        for _ in range(2):
            streams = [engine.submit(Request("the quick", PARAMS)) for _ in range(3)]
            for stream in streams:
                try:
                    assert len(stream.result().token_ids) == 24
                    assert not words
                except PluginError as error:
                    assert words in str(error)
                    assert "scheduler odd" in str(error)


@pytest.mark.parametrize("hook", ["victim", "displaced"])
@pytest.mark.parametrize("answer", ["raises", "lambda *_: None", "lambda *_: 3", "lambda self, *_: [][0]"])
def test_a_failing_victim_or_displaced_method_is_named(odd, tiny, hook, answer):
    odd(f"{RAISES}Policy.{hook} = {answer}")
    many = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    with started(tiny, scheduler__max_running=2 if hook == "displaced" else 8, kv_cache__memory=200_000) as engine:
        streams = [engine.submit(Request([5 + i] * 40, many)) for i in range(6)]
        for stream in streams:
            try:
                assert len(stream.result().token_ids) == 120
            except PluginError as error:
                assert "scheduler odd" in str(error)


def test_a_policy_that_cannot_be_made_again_ends_later_requests_too(odd, tiny):
    code = "made = []\ndef make(limits):\n    made.append(1)\n    if len(made) > 1: raise Odd('once')\n"
    odd(RAISES + code + "    return Policy(limits)\nPolicy.order = raises\npolicies = {'odd': make}")
    with started(tiny) as engine:
        for _ in range(3):
            with pytest.raises(PluginError, match="plugin odd"):
                engine.submit(Request("the quick", PARAMS)).result()


def test_invalid_priorities_never_reach_a_policy(odd, tiny):
    """``fair`` computes with a priority, so that is a number before any policy sees the request."""
    odd("")
    with Engine(tiny, threads=1, overrides={"scheduler.use": "fair"}) as engine:
        engine.start()
        stream = engine.submit(Request("the quick", PARAMS))
        for wrong in (None, "high", 10**400, 1.5):
            with pytest.raises(Exception, match="priority: "):
                engine.submit(Request("the quick", PARAMS, priority=wrong))  # type: ignore[arg-type]
        assert len(stream.result().token_ids) == 24
