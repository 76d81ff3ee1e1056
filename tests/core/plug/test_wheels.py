"""An error about a part that no installed wheel provides names the wheel that has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_model
import yaml
from infeng_convert.conversion import convert
from infeng_convert.interfaces.hooks import CALIBRATORS, QUANTIZERS

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.errors import AdapterError, PluginError
from infeng_core.formats.adapters.artifact import FILE
from infeng_core.formats.adapters.load import find_adapter
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import (
    ADAPTER_DIRECTORIES,
    ADAPTER_READERS,
    BACKENDS,
    DRAFTERS,
    KERNEL_CHECKS,
    LOGIT_PROCESSORS,
    POLICIES,
    PREFIX_STORES,
    TOKENIZERS,
    Hook,
)
from infeng_core.plug.manager import Plugins
from infeng_core.plug.wheels import CLOSE, KERNELS, WHEELS, kernels_remedy

ROOT = Path(__file__).parents[3]


def provided() -> dict[str, dict[str, str]]:
    """Return what the project's plugins provide by their plugin.yaml: kind, name, wheel."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in WHEELS}
    for path in ROOT.glob("plugins/*/infeng_*/plugin.yaml"):
        wheel = re.search(r'^name = "(.*)"$', (path.parents[1] / "pyproject.toml").read_text(), re.MULTILINE)
        assert wheel
        for kind, names in yaml.safe_load(path.read_text())["provides"].items():
            words = [name if isinstance(name, str) else name["name"] for name in names]
            if kind in found:
                found[kind] |= {word: wheel[1] for word in words if not word.startswith("bench-")}
    return found


def test_the_table_is_what_the_projects_wheels_provide() -> None:
    assert provided() == WHEELS


def test_the_tables_of_kernels_have_every_library_of_the_project() -> None:
    listed = {path.parent.name for path in ROOT.glob("plugins/*/library.cc")}
    assert {*KERNELS, *CLOSE} == listed


def test_the_table_of_kernels_has_the_features_that_the_wheels_require() -> None:
    for name, features in KERNELS.items():
        found = yaml.safe_load((ROOT / "plugins" / name / f"infeng_{name}" / "plugin.yaml").read_text())
        assert (found["name"], set(found["requires"]["features"])) == (name, set(features))


def test_a_misspelled_part_of_a_missing_wheel_names_part_and_wheel() -> None:
    plugins = Plugins.discover(load_config())
    plugins.manifests = [found for found in plugins.manifests if found.name in ("core", "numpy")]
    with pytest.raises(PluginError, match=r"provides it: did you mean `fair`\? install the wheel infeng-fair$"):
        plugins.get(POLICIES, "fiar")
    with pytest.raises(PluginError, match=r"provides it: did you mean `numpy`\?$"):
        plugins.get(BACKENDS, "nunpy")
    assert kernels_remedy("avx521", ["reference"]) == "did you mean `avx512`? install the wheel infeng-avx512"
    assert kernels_remedy("avx512", ["reference"]) == "install the wheel infeng-avx512"
    assert kernels_remedy("neon", ["reference"]) == "install the wheel infeng-neon"
    assert kernels_remedy("onednn", ["reference"]) == "install the wheel infeng-onednn"
    assert kernels_remedy("avx521", ["reference", "avx512"]) == "did you mean `avx512`?"


@pytest.mark.parametrize(
    "setting", ["scheduler.use", "backend.use", "tokenizer.use", "speculation.use", "observers.use", "model.format"]
)
def test_a_name_that_nobody_provides_is_an_error_before_the_model_is_read(setting: str, tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(PluginError, match=r"zzz: no plugin provides it: "):
        Engine(model, overrides={setting: "zzz"})


@pytest.mark.parametrize(
    ("plugin", "hook", "name"),
    [
        ("fair", POLICIES, "fair"),
        ("inspect", KERNEL_CHECKS, "trial"),
        ("peft", ADAPTER_DIRECTORIES, "folders"),
        ("prefix-store", PREFIX_STORES, "disk"),
        ("suffix", DRAFTERS, "ngram"),
        ("tokenizers", TOKENIZERS, "hf"),
        ("numpy", BACKENDS, "numpy"),
        ("grammar", LOGIT_PROCESSORS, "grammar"),
        ("calibrate", CALIBRATORS, "text"),
        ("calibrate", QUANTIZERS, "gptq"),
    ],
)
def test_a_part_of_a_missing_wheel_is_an_error_that_names_the_wheel(plugin: str, hook: Hook[object], name: str) -> None:
    plugins = Plugins.discover(load_config())
    plugins.manifests = [found for found in plugins.manifests if found.name != plugin]
    with pytest.raises(PluginError, match=f"no plugin provides it: install the wheel infeng-{plugin}$"):
        plugins.get(hook, name)


@pytest.mark.slow
def test_a_model_with_a_tokenizer_json_and_no_wheel_for_it_runs_on_ids_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model.write(tmp_path / "model")
    discover = Plugins.discover.__func__  # type: ignore[attr-defined]

    def without(cls: type[Plugins], *given: object) -> Plugins:
        plugins: Plugins = discover(cls, *given)
        plugins.manifests = [found for found in plugins.manifests if found.name != "tokenizers"]
        return plugins

    monkeypatch.setattr(Plugins, "discover", classmethod(without))
    assert cli.main(["run", str(model), "-p", "x", "-n", "2"]) != 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.endswith("tokenizer hf: no plugin provides it: install the wheel infeng-tokenizers\n")
    assert cli.main(["run", str(model), "--ids", "0 70 71", "-n", "2", "--ignore-eos"]) == 0
    assert len(capsys.readouterr().out.split()) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["run", "DIR/model.gguf", "-p", "x"],
        ["run", "DIR/absent.gguf", "-p", "x"],
        ["run", "acme/tiny:Q4_K_M", "-p", "x"],
        ["run", "DIR/folder", "-p", "x"],
        ["convert", "DIR/folder", "DIR/made.gguf"],
    ],
)
def test_files_of_a_missing_wheel_are_an_error_that_names_the_wheel(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "model.gguf", tmp_path / "folder" / "model-q4_0.gguf"):
        file.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "gguf")
    monkeypatch.setattr("infeng_convert.hub.fetch", lambda *given: pytest.fail("the hub was asked"))
    assert cli.main([word.replace("DIR", str(tmp_path)) for word in words]) != 0
    said = capsys.readouterr().err
    assert said.rstrip().endswith("install the wheel infeng-gguf") and said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run", "DIR/model", "-p", "x"],
        ["run", "DIR/model.gguf", "-p", "x"],
        ["run", "DIR/empty", "-p", "x"],
        ["run", "acme/tiny", "-p", "x"],
        ["run", "acme/tiny@v1.0", "-p", "x"],
        ["plugins", "why", "linear", "--model", "DIR/model"],
        ["convert", "DIR/model", "DIR/made"],
        ["models", "DIR/model"],
        ["cache", "list"],
    ],
)
def test_models_that_are_not_converted_are_an_error_that_names_the_wheel_which_converts_them(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model.write(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "convert")
    assert cli.main([word.replace("DIR", str(tmp_path)) for word in words]) != 0
    said = capsys.readouterr().err
    assert said.rstrip().endswith("install the wheel infeng-convert") and said.count("\n") == 1


@pytest.mark.slow
def test_a_converted_model_runs_without_the_wheel_that_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    made = convert(tiny_model.write(tmp_path / "source"), tmp_path / "made", FormatChoice("int8-row")).path
    words = ["run", str(made), "-p", "the quick", "--max-tokens", "4", "--temperature", "0"]
    assert cli.main(words) == 0
    usual = capsysbinary.readouterr().out
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "convert")
    assert cli.main(words) == 0
    assert capsysbinary.readouterr().out == usual != b""


def test_an_adapter_of_a_missing_wheel_is_an_error_that_names_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "gguf,peft")
    plugins = Plugins.discover(load_config())
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "poet.gguf").write_bytes(b"GGUF" + bytes(100))
    for path, why, wheel in (
        (tmp_path, "holds adapter_config.json, which nothing that is installed reads", "infeng-peft"),
        (tmp_path / "poet.gguf", "is a file", "infeng-gguf"),
    ):
        with pytest.raises(AdapterError) as caught:
            find_adapter(path, plugins)
        assert str(caught.value) == f"{path}: {why}: install the wheel {wheel}"
    with pytest.raises(AdapterError, match=r"which nothing that is installed reads: install a plugin that reads it$"):
        find_adapter(tmp_path)


def test_an_engine_native_adapter_needs_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "gguf,peft")
    plugins = Plugins.discover(load_config())
    assert not dict(plugins.each(ADAPTER_READERS))
    (tmp_path / FILE).touch()
    assert find_adapter(tmp_path, plugins) == (tmp_path, None)


def test_models_describes_a_peft_directory_by_the_wheel_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert cli.main(["models", str(tmp_path)]) == 1
    assert "it is an adapter: give it with --lora" in capsys.readouterr().out
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "peft")
    assert cli.main(["models", str(tmp_path)]) == 1
    assert "which nothing that is installed reads: install the wheel infeng-peft" in capsys.readouterr().out


@pytest.mark.parametrize("disabled", ["", "peft"])
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_engine_native_adapter_beside_one_of_peft_is_an_error_whatever_is_installed(
    disabled: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", disabled)
    (tmp_path / FILE).touch()
    (tmp_path / name).touch()
    with pytest.raises(AdapterError, match="of which only one can be meant: keep them in two directories"):
        find_adapter(tmp_path, Plugins.discover(load_config()))


def test_without_the_wheel_of_calibration_text_is_refused_and_what_needs_none_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_model.write(tmp_path / "source", tiny_model.Shape(tie=False))
    discover = Plugins.discover.__func__  # type: ignore[attr-defined]

    def without(cls: type[Plugins], *given: object) -> Plugins:
        plugins: Plugins = discover(cls, *given)
        plugins.manifests = [found for found in plugins.manifests if found.name != "calibrate"]
        return plugins

    monkeypatch.setattr(Plugins, "discover", classmethod(without))
    for options in (["--calibrate", "auto"], ["--quality", "small"]):
        assert cli.main(["convert", str(source), str(tmp_path / "made"), *options]) == 2
        assert (
            "--calibrate auto: calibrator text: no plugin provides it: "
            "install the wheel infeng-calibrate, or give --calibrate none"
        ) in capsys.readouterr().err
    for name, options in (("int8", []), ("balanced", ["--budget", "6", "--calibrate", "none"])):
        assert cli.main(["convert", str(source), str(tmp_path / name), "--quality", name, *options]) == 0


@pytest.mark.parametrize(
    ("plugin", "words"),
    [("serve", ["serve", "MODEL"]), ("peft", ["convert-adapter", "PEFT", "DEST", "--model", "MODEL"])],
)
def test_a_command_of_a_missing_wheel_is_an_error_that_names_the_wheel(
    plugin: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Plugins.commands
    monkeypatch.setattr(Plugins, "commands", lambda self: {"run": commands(self)["run"]})
    discover = Plugins.discover.__func__  # type: ignore[attr-defined]

    def without(cls: type[Plugins], *given: object) -> Plugins:
        plugins: Plugins = discover(cls, *given)
        plugins.manifests = [found for found in plugins.manifests if found.name != plugin]
        return plugins

    monkeypatch.setattr(Plugins, "discover", classmethod(without))
    assert cli.main(words) != 0
    said = f"command {words[0]}: no plugin brings it: install the wheel infeng-{plugin}"
    assert said in capsys.readouterr().err
