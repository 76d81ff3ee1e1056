"""The command line of `infeng bench`."""

import subprocess
import sys
from pathlib import Path

import pytest
from infeng_bench import command

from infeng_core.api import Plugins
from infeng_core.cli import main


@pytest.mark.parametrize("name", list(command.verbs()))
def test_every_verb_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", name, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"infeng bench {name}" in shown
    assert ("--json OUT" in shown) == (name not in ("peers", "report"))  # what measures writes a result


def test_help_imports_no_verb() -> None:
    script = (
        "import sys; from infeng_core.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if '.verbs.' in name], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stderr.strip() == "[]"
    assert all(name in ended.stdout for name in command.verbs())


@pytest.mark.parametrize("name", command.OF_WHEELS)
def test_a_verb_of_a_missing_wheel_names_the_wheel(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Plugins, "answers", lambda *asked: {})
    wheel = command.OF_WHEELS[name]
    assert main(["bench", name, "tinyllama-1.1b", "--json", "out.json"]) == 2
    assert f"install the wheel {wheel}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert f"needs the wheel {wheel}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("decode", "--engines", "infeng,llama_cpp"),
        ("lora-tax", "--engines", "infeng,llama_cpp"),
        ("serve", "--http", "--engines", "infeng,llama_cpp"),
        ("gemm", "--against", "torch"),
        ("experts", "--peer", "kt_kernel"),
    ],
)
def test_another_engine_names_the_wheel_that_brings_it(
    words: tuple[str, ...], moe_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Plugins, "answers", lambda *asked: {})
    assert main(["bench", *words, "--synthetic", str(moe_config), "-t", "1"]) == 2
    assert "install the wheel infeng-peers" in capsys.readouterr().err


def test_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "rooflin"])
    assert caught.value.code == 2
    assert "roofline" in capsys.readouterr().err
