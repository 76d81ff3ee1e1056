"""Templates of strangers: what they compute is bounded, what they reach is nothing."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from chat_parts import CHATML, MakeChat
from infeng_chat.rendering import renderer
from infeng_chat.rendering.renderer import Renderer, RenderLimits

import infeng_core
from infeng_core.api import ModelError, RequestError

TIGHT = RenderLimits(seconds=0.3, memory=128 << 20, output=20_000)
ROOMY = RenderLimits(seconds=4, memory=128 << 20, output=20_000)
HI = [{"role": "user", "content": "Hi"}]
BOMB = [{"role": "user", "content": "bomb"}]

TIME = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
POWER = "{% set x = 9 ** (messages | length * 999999999) %}"
MEMORY = "{% set ns = namespace(x='x' * 1000000) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
AT_ONCE = "{% set x = 'x' * (messages | length * 99999999999) %}"
OUTPUT = "{% for a in range(99999) %}a long line{% endfor %}"
NESTED = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
IN_ONE = "{{ 'x' * 1000000 }}"


def on_bomb(written: str) -> str:
    """Return a template that does something for one conversation alone."""
    return f"{{% if messages[-1].content == 'bomb' %}}{written}{{% endif %}}{CHATML}"


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (TIME, "more than 0.3 s"),
        (POWER, "more than 0.3 s"),
        (MEMORY, "more than 128 MiB"),
        (AT_ONCE, "more than 128 MiB"),
        (OUTPUT, "more than 20000 characters"),
        (IN_ONE, "more than 20000 characters"),
        (NESTED, "nested too deeply"),
    ],
    ids=["time", "power", "memory", "at once", "output", "in one", "nested"],
)
def test_a_template_bomb_is_refused_and_the_next_conversation_rendered(
    bomb: str, why: str, make_chat: MakeChat
) -> None:
    template = make_chat(on_bomb(bomb), limits=TIGHT if "0.3" in why else ROOMY)
    begin = time.monotonic()
    with pytest.raises(RequestError, match=why):
        template.prompt(BOMB)
    assert time.monotonic() - begin < ROOMY.patience
    assert "Hi<|im_end|>" in template.prompt(HI).text


@pytest.mark.parametrize("bomb", [TIME, "{{ 9 ** (9 ** 9) }}", "{{ 'x' * 99999999999 }}"])
def test_a_template_that_fails_its_probes_is_a_model_error(bomb: str, make_chat: MakeChat) -> None:
    with pytest.raises(ModelError, match="chat template"):
        make_chat(bomb, limits=TIGHT)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}{{ self.__init__ }}",
        "{% include '/etc/passwd' %}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_a_template_cannot_reach_the_interpreter(escape: str, make_chat: MakeChat) -> None:
    try:
        text = make_chat(on_bomb(escape)).prompt(BOMB).text
    except RequestError as error:
        assert "fails on them" in str(error)
    else:
        assert text.startswith("<|im_start|>user"), "it is not there"


def test_a_template_with_a_syntax_error_is_a_model_error_with_its_line(make_chat: MakeChat) -> None:
    with pytest.raises(ModelError, match="line 2"):
        make_chat("fine\n{% if %}")


def test_a_process_that_died_is_started_again() -> None:
    asked = Renderer("{{ x }}", "test")
    assert asked.render([{"x": 1}, {"x": "é"}]) == ["1", "é"]
    first = asked._idle[0].process
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert asked.render([{"x": 2}]) == ["2"]
    asked.close()
    assert asked.render([{"x": 3}]) == ["3"]
    asked.close()


def test_a_rendering_does_not_block_other_threads() -> None:
    asked = Renderer("done {{ x }}", "test")
    with asked._child() as busy:
        assert asked.render([{"x": 1}]) == ["done 1"]
        [other] = asked._idle
        assert other is not busy
    assert asked._idle == [other, busy]
    assert asked.render([{"x": 2}]) == ["done 2"]
    assert asked._idle == [other, busy], "there are as many as were busy at a time"
    asked.close()


def test_the_process_does_not_import_the_engine_and_ends_with_its_owner() -> None:
    asked = Renderer("{{ x }}", "test")
    asked.compile()
    child = asked._idle[0].process
    maps = Path(f"/proc/{child.pid}/maps").read_text()
    for package in (infeng_core, numpy):  # whose folders, not a word that the checkout's may hold as well
        assert f"{Path(package.__file__).parent}/" not in maps
    assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2"]  # noqa: PTH208 (names of descriptors)
    del asked
    assert child.wait(10) != 0


def test_several_threads_may_render_at_once(make_chat: MakeChat) -> None:
    template = make_chat()

    def ask(number: int) -> bool:
        return f"user\n{number}<" in template.prompt([{"role": "user", "content": str(number)}]).text

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))


def test_the_answer_to_an_interrupted_message_is_not_given_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Renderer("{{ x }}", "test")
    asked.compile()
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            asked.render([{"x": 1}])
    assert asked.render([{"x": 2}]) == ["2"]
    asked.close()


def test_a_conversation_may_be_long_but_not_endless(make_chat: MakeChat, monkeypatch: pytest.MonkeyPatch) -> None:
    template = make_chat()
    long = "word " * 20_000
    assert long in template.prompt([{"role": "user", "content": long}]).text
    monkeypatch.setattr(renderer, "MOST_INPUT", 1000)
    with pytest.raises(RequestError, match="at most"):
        template.prompt([{"role": "user", "content": "x" * 1000}])


def test_the_environment_of_transformers_templates_is_available(make_chat: MakeChat) -> None:
    written = (
        "{% generation %}{{ {'é': '<'} | tojson }}{% endgeneration %}"
        "{{ {'b': 1, 'a': 2} | tojson(ensure_ascii=True, indent=1, separators=(',', ':'), sort_keys=True) }}"
        "{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    assert make_chat(on_bomb(written)).prompt(BOMB).text.startswith('{"é": "<"}{\n "a":2,\n "b":1\n}014')


def test_a_prepared_process_is_used_once_and_not_after_it_died():
    for dies in (False, True):
        renderer.prepare()
        renderer.prepare()  # there is one: this does nothing
        [child] = renderer._spares
        if dies:
            child.kill()
            child.wait()
        first, second = Renderer(CHATML, "first"), Renderer(CHATML, "second")
        for one in (first, second):
            one.compile()
        assert (first._idle[0].process is child) is not dies
        assert second._idle[0].process is not child and not renderer._spares
        for one in (first, second):
            one.close()
