"""An error of a plugin's object names the plugin and the expected type, and other plugins go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import odd_plugin
import pytest
import tiny_model
from numpy.typing import NDArray

from infeng_core import cli, log
from infeng_core.engine import Engine
from infeng_core.errors import PluginError, RequestError
from infeng_core.plug.plugin_boundary import wrong
from infeng_core.requests.request import SamplingParams


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
    """Return a function that installs a plugin whose objects ``code`` has spoilt."""
    with odd_plugin.installer(tmp_path, monkeypatch) as install:
        yield install


def answer(tiny: Path, use: str) -> list[int]:
    settings = {"tokenizer": "hf", "scheduler": "fcfs", "backend": "native", use: "odd"}
    overrides = {f"{name}.use": value for name, value in settings.items() if name}
    with Engine(tiny, threads=1, overrides=overrides) as engine:
        return list(engine.generate("the quick", SamplingParams(temperature=0.0, max_tokens=4))[0].token_ids)


@pytest.mark.parametrize("use", ["tokenizer", "scheduler", "backend"])
def test_a_sound_part_of_a_plugin_gives_the_same_tokens(odd, tiny, use):
    odd("")
    assert answer(tiny, use) == answer(tiny, "")


MADE = "quant_formats = {'odd': F('odd', 'f32', layout='f32')}"
RAISES = "def raises(*args, **kwargs): raise Odd('by design')\n"
SPOILT = [
    ("tokenizer", "tokenizers = {'odd': 3}", "cannot be called"),
    ("tokenizer", "tokenizers = {'odd': lambda *_: None}", "tokenizer odd: it has no vocab_size"),
    ("tokenizer", RAISES + "tokenizers = {'odd': raises}", "tokenizer odd: making it raised Odd: by design"),
    ("tokenizer", "tokenizers = {'odd': lambda: None}", "tokenizer odd: making it raised TypeError"),
    ("tokenizer", "Tokenizer.encode = None", "tokenizer odd: encode is None, not a method"),
    ("tokenizer", "Tokenizer.vocab_size = 'many'", "tokenizer odd: vocab_size is 'many', not int"),
    ("tokenizer", RAISES + "Tokenizer.bos_id = property(raises)", "tokenizer odd: bos_id raised Odd: by design"),
    ("tokenizer", RAISES + "Tokenizer.encode = raises", "tokenizer odd: encode() raised Odd: by design"),
    ("tokenizer", "Tokenizer.encode = lambda *_: None", "the result of encode() is None, not list"),
    ("tokenizer", "Tokenizer.encode = lambda *_: []", "encode() returned ids of 0 texts for 1"),
    ("tokenizer", "Tokenizer.encode = lambda *_: [['a']]", "has an item that has an item that is 'a', not int"),
    ("tokenizer", "Tokenizer.detokenizer = lambda *_: 3", "tokenizer odd: it has no push"),
    ("tokenizer", "class D:\n    def push(self, token): return b'x'\n    def finish(self): return ''\n"
                  "Tokenizer.detokenizer = lambda *_: D()", "the result of push() is b'x', not str"),
    ("tokenizer", "class D:\n    def push(self, token): 1 / 0\n    def finish(self): return ''\n"
                  "Tokenizer.detokenizer = lambda *_: D()", "push() raised ZeroDivisionError"),
    ("scheduler", "policies = {'odd': lambda limits: object()}", "scheduler odd: it has no add"),
    ("scheduler", RAISES + "policies = {'odd': raises}", "scheduler odd: making it raised Odd"),
    ("scheduler", RAISES + "Policy.add = raises", "scheduler odd: add() raised Odd: by design"),
    ("scheduler", "Policy.order = lambda self, now: 3", "the result of order() is 3, not"),
    ("scheduler", RAISES + "Policy.order = raises", "order() raised Odd: by design"),
    ("scheduler", RAISES + "Policy.served = raises", "served() raised Odd: by design"),
    ("scheduler", RAISES + "Policy.ended = raises", "ended() raised Odd: by design"),
    ("backend", "backends = {'odd': 3}", "backend odd: it has no uses_kernels"),
    ("backend", RAISES + "Backend.compile = raises", "backend odd: compile() raised Odd: by design"),
    ("backend", "Backend.compile = lambda *_: None", "backend odd: it has no kv_bytes"),
    ("backend", RAISES + "Executable.run = raises", "backend odd: run() raised Odd: by design"),
    ("backend", "Executable.run = lambda *_: None", "the result of run() is None, not ndarray"),
    ("backend", "Executable.run = lambda *_: np.zeros((1, 320))", "is of float64, not float32"),
    ("backend", "Executable.run = lambda *_: np.zeros((7, 320), np.float32)", "returned (7, 320) for 1 sampled rows"),
    ("backend", "Executable.kv_bytes = None", "kv_bytes is None, not int"),
    ("backend", "class Panic(BaseException): pass\ndef panics(*_): raise Panic('deep')\nExecutable.run = panics",
     "run() raised Panic: deep"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "code", "words"), SPOILT, ids=[f"{use}: {words}" for use, _, words in SPOILT])
def test_a_broken_part_is_named_with_its_plugin(odd, tiny, use, code, words):
    odd(code)
    with pytest.raises((PluginError, RequestError)) as caught:
        answer(tiny, use)
    assert "plugin odd" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("quant_formats = {'odd': 3}", "quant format odd: it is 3, not QuantFormat"),
        ("quant_formats = {'odd': QuantFormat('odd', 'f17')}", "has a activation that is 'f17', not one of f32"),
        ("quant_formats = {'odd': QuantFormat(None, 'f32')}", "has a name that is None, not str"),
        *(
            (
                f"{RAISES}class F(QuantFormat):\n    {name} = raises\n{MADE}",
                f"quant format odd: {name}() raised Odd: by design",
            )
            for name in ("pack", "panel_bytes")
        ),
        (
            f"{RAISES}class F(QuantFormat):\n    is_float = property(raises)\n{MADE}",
            "quant format odd: is_float() raised Odd: by design",
        ),
        (
            "class F(QuantFormat):\n    pack = 3\n" + MADE,
            "pack is 3, not a method",
        ),
        (
            "class F(QuantFormat):\n    def panel_bytes(self, k): return 'x'\n" + MADE,
            "the result of panel_bytes() is 'x', not int",
        ),
        (
            "class F(QuantFormat):\n    def panel_bytes(self, k): return -64\n" + MADE,
            "panel_bytes() returned -64, which is no multiple of 64 above 0",
        ),
    ],
)
def test_a_broken_format_is_named_with_its_plugin(odd, tiny, code, words):
    odd(code)
    with pytest.raises(PluginError, match="plugin odd") as caught:
        Engine(tiny, format="odd")
    assert words in str(caught.value)


def test_a_method_outside_the_interface_is_checked_as_well(odd, tiny):
    odd(RAISES + "Backend.block_windows = raises")
    with pytest.raises(PluginError, match=r"plugin odd: backend odd: block_windows\(\) raised Odd: by design"):
        answer(tiny, "backend")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("commands = [3, Other()]", "promises the command odd, its hooks do not bring it"),
        ("Command.help = None", "command odd: help is None, not str"),
        ("Command.run = 3", "command odd: run is 3, not a method"),
        ("del Command.configure", "command odd: it has no configure"),
        (RAISES + "Command.configure = raises", "command odd: configure() raised Odd: by design"),
        (RAISES + "Command.run = raises", "command odd: run() raised Odd: by design"),
        ("Command.run = lambda *_: 'fine'", "the result of run() is 'fine', not int"),
        ("def twice(self, parser): parser.add_argument('--help')\nCommand.configure = twice", "raised ArgumentError"),
    ],
)
def test_a_broken_command_does_not_affect_others(odd, capsys, code, words):
    odd(code)
    assert cli.main(["odd"]) == 1
    err = capsys.readouterr().err
    errors = [line for line in err.splitlines() if line.startswith("infeng: error: ")]
    assert len(errors) == 1 and words in err and "plugin odd" in errors[0]
    if "Command." not in code:  # which the other one inherits
        assert cli.main(["even"]) == 0
        assert capsys.readouterr().out == "even\n"
    assert cli.main(["plugins", "list"]) == 0


def test_the_traceback_of_a_plugins_error_is_in_the_log(odd, capsys, monkeypatch):
    odd(RAISES + "Command.run = raises")
    assert cli.main(["odd"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(log._settings, "level", log.LEVELS["debug"])
    assert cli.main(["odd"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and "by design" in err


@pytest.mark.parametrize(
    ("value", "owed", "text"),
    [
        (3, int, ""),
        (np.int64(3), int, ""),
        (True, int, "is True, not int"),
        (None, int | None, ""),
        ("3", int | None, "is '3', not int"),
        ([1, 2], list[int], ""),
        ((1, 2), Sequence[int], ""),
        ("12", Sequence[int], "is '12', not Sequence"),
        ([1, "2"], list[int], "has an item that is '2', not int"),
        ([1, np.int64(2)], list[int], ""),
        ([1, True], list[int], "has an item that is True, not int"),
        ([[1], [2, None]], list[list[int]], "has an item that has an item that is None, not int"),
        ([[1], 2], list[list[int]], "has an item that is 2, not list"),
        ((), tuple[str, ...], ""),
        ((3,), tuple[str, ...], "has an item that is 3, not str"),
        ({"a": 1}, Mapping[str, int], ""),
        ({"a": "b"}, dict[str, int], "has an entry 'a' that is 'b', not int"),
        ("f32", Literal["f32", "int8"], ""),
        ("f16", Literal["f32", "int8"], "is 'f16', not one of f32, int8"),
        (print, Callable[..., Any], ""),
        (3, Callable[..., Any], "is 3, which cannot be called"),
        (np.zeros(2, np.float32), NDArray[np.float32], ""),
        (np.zeros(2), NDArray[np.float32], "is of float64, not float32"),
        (object, Any, ""),
        ("x" * 500, int, f"is '{'x' * 26} ... (502 characters) ... {'x' * 26}', not int"),
    ],
)
def test_an_invalid_value_is_described(value, owed, text):
    assert wrong(value, owed) == text
