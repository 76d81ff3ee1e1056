"""The options that all verbs of `infeng bench` share."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from infeng_bench import command
from infeng_bench.hookspecs import BenchVerb, infeng_bench_verbs

from infeng_core.api import Plugins
from infeng_core.cli import main

WITH_MODEL = [name for name in command.verbs() if name not in ("peers", "report", "roofline", "memory")]
NEEDED = {"compare": ("--engines", "infeng,llama_cpp", "--work", "decode")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``asked(verb, *words)``: the arguments with which the verb would run."""

    def ask(name: str, *words: str) -> argparse.Namespace:
        found: list[argparse.Namespace] = []
        monkeypatch.setattr(command.verb(name), "run", lambda arguments: found.append(arguments) or 0)
        assert main(["bench", name, *words]) == 0
        return found[0]

    return ask


@pytest.mark.parametrize("name", WITH_MODEL)
def test_every_verb_takes_its_model_before_or_after_its_options(name: str, asked: Any, tmp_path: Path) -> None:
    needed = NEEDED.get(name, ())
    for words in ((str(tmp_path), *needed, "--seed", "3"), (*needed, "--seed", "3", str(tmp_path))):
        arguments = asked(name, *words)
        assert (arguments.model, arguments.synthetic, arguments.seed) == (str(tmp_path), None, 3)
    for option in ("--model", "--base-model"):
        assert asked(name, *needed, option, str(tmp_path)).model == str(tmp_path)


def test_a_models_name_means_a_path_first_and_then_a_shape(
    asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("decode", "smollm2-135m").synthetic == "smollm2-135m"
    (tmp_path / "smollm2-135m").mkdir()
    arguments = asked("decode", "smollm2-135m")
    assert (arguments.model, arguments.synthetic) == ("smollm2-135m", None)


def test_the_config_option_draws_random_weights(asked: Any, tiny_config: Path) -> None:
    assert asked("prefill", str(tiny_config)).synthetic == str(tiny_config)


def test_the_verb_memory_takes_several_models(asked: Any) -> None:
    assert asked("memory", "--context", "64", "smollm2-135m,tinyllama-1.1b").synthetic == [
        "smollm2-135m",
        "tinyllama-1.1b",
    ]


@pytest.mark.parametrize("option", ["--model", "--synthetic"])
def test_two_models_are_a_usage_error(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "smollm2-135m", option, "tinyllama-1.1b"]) == 2
    assert "name one model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compare", "zipf"])
def test_no_model_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", name, *NEEDED.get(name, ())]) == 2
    assert "give --synthetic NAME or --model PATH, or MODEL alone" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "dest"), [("decode", "rounds"), ("zipf", "iters"), ("lora-tax", "pairs")])
def test_the_option_pairs_has_one_spelling_and_its_old_ones_still_work(name: str, dest: str, asked: Any) -> None:
    for option in ("--pairs", "--rounds", "--iters"):
        assert getattr(asked(name, "smollm2-135m", option, "7"), dest) == 7


@pytest.mark.parametrize("name", ["compare", "zipf", "serve", "decode"])
def test_every_verb_names_engines_alike(name: str, asked: Any) -> None:
    more = ("--work", "decode") if name == "compare" else ()
    for option in ("--engines", "--engine"):
        assert asked(name, "smollm2-135m", *more, option, "infeng,openvino").engines == "infeng,openvino"


def test_serve_starts_the_servers_of_no_other_peer(tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", str(tiny_config), "--http", "--engines", "infeng,openvino"]) == 2
    assert "--http --engines infeng,llama_cpp" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in command.verbs() if name not in ("peers", "report")])
def test_the_error_of_an_unknown_option_suggests_a_known_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", name, *NEEDED.get(name, ()), "--reprot", "page.html"])
    assert caught.value.code == 2
    assert "did you mean `--report`?" in capsys.readouterr().err


def test_help_shows_defaults_of_options_but_not_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "lora-tax", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("row i uses adapter i mod N (default: 4)", "seed of prompts and adapters (default: 0)"):
        assert text in shown
    assert "False" not in shown and "[]" not in shown


@pytest.mark.parametrize("brought", [{}, {"other": {"report": BenchVerb("another verb of that name", "json")}}])
def test_a_report_that_cannot_be_drawn_is_an_error_before_the_measurement(
    brought: dict[str, Any],
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Plugins, "answers", lambda self, hook: brought if hook is infeng_bench_verbs else {})
    monkeypatch.setattr(command.verb("decode"), "run", lambda arguments: pytest.fail("it ran"))
    assert main(["bench", "decode", str(tiny_config), "--report", str(tmp_path / "page.html")]) == 2
    assert "install the wheel infeng-report" in capsys.readouterr().err
