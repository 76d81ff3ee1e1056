"""Plugins that must be what a manifest or a lock says: version and sha256, compared before anything is loaded."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugin_files import GOOD, HOOKS, discover

from infeng_core import cli
from infeng_core.errors import ManifestError, PluginError
from infeng_core.plug import fingerprint as files
from infeng_core.plug.assembly import load_config
from infeng_core.plug.fingerprint import fingerprint
from infeng_core.plug.hookspecs import COMMANDS, CONVERTERS, LOCATORS, POLICIES, TOKENIZERS
from infeng_core.plug.manager import Plugins
from infeng_core.plug.pins import identity

OTHER = "0" * 64
Install = Callable[..., Path]


@pytest.fixture
def shout(install: Install) -> Path:
    """The folder of an installed plugin whose import would be noticed."""
    return install("shout", init="import infeng_core; infeng_core.heard = True").parent


def required(**wanted: str) -> Plugins:
    return Plugins.discover(load_config(overrides={"plugins.require": {"shout": wanted}}))


def now() -> str:
    return fingerprint(discover().plugin("shout"))


@pytest.mark.parametrize("version", [">=0.3", "==1.0.0", "==1.0", "~=1.0", ">=0.3,<2,!=1.1", "===1.0.0"])
def test_a_version_that_fits_is_used(shout: Path, version: str) -> None:
    assert required(version=version, sha256=now()).get(TOKENIZERS, "shout")


@pytest.mark.parametrize("version", [">=2", "<1", "==1.1", "===1.0"])
def test_a_version_that_does_not_fit_is_an_error_with_both(shout: Path, version: str) -> None:
    with pytest.raises(PluginError) as caught:
        required(version=version)
    why = f"version {version} is wanted, 1.0.0 is installed"
    assert str(caught.value).startswith(f"plugins.require.shout (argument): {why}: install the shout that is wanted")
    assert "infeng_shout" not in sys.modules


def test_a_pre_release_fits_as_pip_counts_it_and_what_is_no_version_fits_nothing(install: Install) -> None:
    path = install("shout", yaml=GOOD.replace("1.0.0", "2.0rc1"))
    assert required(version=">=1")
    path.write_text(path.read_text().replace("2.0rc1", "the-best"))
    with pytest.raises(PluginError, match="version >=1 is wanted, the-best is installed"):
        required(version=">=1")


def test_another_sha256_is_an_error_with_both_before_anything_is_loaded(shout: Path) -> None:
    locked = now()
    (shout / "hooks.py").write_text((shout / "hooks.py").read_text() + "\n")
    with pytest.raises(PluginError, match=f"sha256 {locked} is wanted, {now()} is installed"):
        required(sha256=locked)
    assert "infeng_shout" not in sys.modules


def test_a_plugin_that_is_missing_disabled_or_broken_is_an_error(shout: Path) -> None:
    with pytest.raises(
        PluginError, match=r"plugins\.require\.shuot \(argument\): no plugin has this name: did you mean"
    ):
        discover(plugins__require={"shuot": {}})
    with pytest.raises(PluginError, match=r"plugins\.require\.shout .*cannot be used: listed in plugins\.disable"):
        discover(plugins__require={"shout": {}}, plugins__disable="shout")
    (shout / "plugin.yaml").write_text("infeng_plugin: [\n")
    with pytest.raises(PluginError, match=r"plugins\.require\.shout .*cannot be used: .*plugin\.yaml:2"):
        discover(plugins__require={"shout": {}})


def test_a_requirement_names_its_line(shout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "engine.yaml"
    manifest.write_text('infeng: 1\nplugins:\n  require:\n    shout: {version: ">=2"}\n')
    assert cli.main(["plugins", "list", "--manifest", str(manifest)]) == 1
    assert f"plugins.require.shout ({manifest}:3): version >=2 is wanted" in capsys.readouterr().err
    words = ["plugins", "list", "--set", "plugins.require.shout={version: '>=2', sha256: null}"]
    assert cli.main(words) == 2
    assert "argument plugins.require.shout: expected text, found nothing" in capsys.readouterr().err


WRONG = {
    "text": "expected names and values",
    "[shout]": "expected names and values, found a list",
    "{shout: '>=1'}": "expected keys and values such as {version: '>=0.3'}, found text",
    "{shout: null}": "found nothing",
    "{shout: [{}]}": "found a list",
    "{shout: {versions: '1'}}": "unknown key 'versions'",
    "{shout: {version: 1.0}}": "expected text, found a number",
    "{shout: {version: '1.0'}}": "version: '1.0' is none such as '>=0.3' (PEP 440)",
    "{shout: {version: '>=x y'}}": "is none such as",
    "{shout: {sha256: abc}}": "sha256: expected 64 hexadecimal digits",
    "{shout: {sha256: " + "A" * 64 + "}}": "sha256: expected 64 hexadecimal digits",
    "{shout: {sha256: 12}}": "expected text, found a whole number",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_requirement_of_another_form_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    manifest = tmp_path / "engine.yaml"
    manifest.write_text(f"infeng: 1\nplugins: {{require: {text}}}\n")
    with pytest.raises(ManifestError) as caught:
        load_config(manifest)
    assert str(caught.value).startswith(f"{manifest}:2: plugins.require: ") and WRONG[text] in str(caught.value)


def test_a_huge_specifier_is_refused_in_a_few_words() -> None:
    with pytest.raises(ManifestError) as caught:
        load_config(overrides={"plugins.require": {"x\x1b": {"version": "~" * 100_000}}})
    assert len(str(caught.value)) < 2500 and str(caught.value).isprintable()


# ------------------------------------------------------------------------------------------------------- sha256


def test_the_sha256_is_that_of_a_list_of_files_that_sha256sum_makes(shout: Path) -> None:
    lines = sorted(
        f"{hashlib.sha256((shout / name).read_bytes()).hexdigest()}  infeng_shout/{name}\n"
        for name in ("__init__.py", "hooks.py", "plugin.yaml")
    )
    assert now() == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_sha256_covers_what_runs_and_not_what_an_installation_makes(shout: Path) -> None:
    before, info = now(), shout.parent / "infeng_shout-1.0.dist-info"
    (info / "INSTALLER").write_text("pip")
    (info / "RECORD").write_text(
        "infeng_shout/hooks.py,,\ninfeng_shout-1.0.dist-info/RECORD,,\n../../bin/shout,,\n/etc/hostname,,\n"
        "a/../../b,,\n\n"
    )
    assert discover().get(TOKENIZERS, "shout")  # compiles its modules
    (shout / "__pycache__").mkdir(exist_ok=True)
    (shout / "__pycache__" / "more.txt").write_text("x")
    (shout / "old.pyc").write_text("x")
    assert now() == before
    seen = {before}
    for name in ("hooks.py", "more.py", "data/table.txt", "hooks.cpython-311.so"):
        (shout / name).parent.mkdir(exist_ok=True)
        (shout / name).write_text(f"# {name}")
        seen.add(now())
    (shout / "more.py").rename(shout / "moved.py")
    assert len(seen | {now()}) == 6


def test_the_sha256_covers_the_files_of_a_wheel_outside_its_package(shout: Path) -> None:
    other, record = shout.parent / "shout_tables" / "t, 1.txt", shout.parent / "infeng_shout-1.0.dist-info" / "RECORD"
    other.parent.mkdir()
    other.write_text("one")
    record.write_text('"shout_tables/t, 1.txt",sha256=x,3\n')
    before = now()
    other.write_text("two")
    assert now() != before
    other.unlink()
    with pytest.raises(PluginError, match=r"t, 1\.txt: no such file: reinstall the plugin"):
        now()


def test_the_sha256_of_a_plugin_that_a_manifest_names_covers_its_module_and_library(
    workshop: Any, tmp_path: Path
) -> None:
    path = workshop.plugin("first")
    (path.parent / "unrelated.txt").write_text("x")

    def found() -> str:
        return fingerprint(workshop.plugins(path).plugin("first"))

    before = found()
    (path.parent / "unrelated.txt").write_text("y")
    assert found() == before
    workshop.plugin("first", PRIORITY=3)
    assert found() != before
    for folder in ("a", "b"):  # beside plugin.yaml, and around it
        module = tmp_path / folder / ("loud_a" if folder == "a" else "in/loud_b")
        module.parent.mkdir(parents=True)
        module.with_suffix(".py").write_text("x = 1")
        own = (module.parent if folder == "a" else module.parent / "deep") / "plugin.yaml"
        own.parent.mkdir(exist_ok=True)
        own.write_text(f"infeng_plugin: 1\nname: {folder}\nversion: 1\npython: {module.name}\n")
        one = fingerprint(workshop.plugins(own).plugin(folder))
        module.with_suffix(".py").write_text("x = 2")
        assert fingerprint(workshop.plugins(own).plugin(folder)) != one


@pytest.mark.parametrize("row", ["x" * 200_000, "a\0b", "x" * 5000, '"unclosed', "folder"])
def test_a_damaged_record_is_an_error_of_the_plugin(shout: Path, row: str) -> None:
    (shout.parent / "folder").mkdir()
    (shout.parent / "infeng_shout-1.0.dist-info" / "RECORD").write_text(f"infeng_shout/hooks.py,,\n{row},,\n")
    with pytest.raises(PluginError) as caught:
        now()
    assert len(str(caught.value)) < 3000


def test_what_is_no_file_ends_at_once_in_an_error(shout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = now()
    os.mkfifo(shout / "pipe")
    with pytest.raises(PluginError, match=r"pipe: cannot be read \(it is no regular file\)"):
        now()
    (shout / "pipe").unlink()
    (shout / "zero").symlink_to("/dev/zero")
    with pytest.raises(PluginError, match=r"zero: cannot be read \(it is no regular file\)"):
        now()
    (shout / "zero").unlink()
    (shout / "loop").symlink_to(shout)
    with pytest.raises(PluginError, match="loop: is a link to a folder"):
        now()
    (shout / "loop").unlink()
    (shout / "gone").symlink_to("nowhere")
    with pytest.raises(PluginError, match="gone: no such file"):
        now()
    (shout / "gone").unlink()
    with (shout / "huge").open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)  # a hole
    with pytest.raises(PluginError, match="huge: with it the plugin has more than"):
        now()
    (shout / "huge").unlink()
    assert now() == before
    monkeypatch.setattr(files, "MOST_FILES", 2)
    with pytest.raises(PluginError, match="plugin shout: has more than 2 files"):
        now()


def test_a_link_to_a_file_counts_as_that_file(shout: Path, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(name="shout"))
    before = now()
    (shout / "hooks.py").unlink()
    (shout / "hooks.py").symlink_to(tmp_path / "hooks.py")
    assert now() == before


def test_odd_names_of_files_are_told_apart(shout: Path) -> None:
    seen = set()
    for name in (b"a\nb", b"a\\nb", b"\xff\xfe", b"a b"):
        path = os.fsencode(shout) + b"/" + name
        with open(path, "wb"):  # noqa: PTH123
            seen.add(now())
        os.unlink(path)  # noqa: PTH108
    assert len(seen) == 4


def test_the_sha256_is_computed_only_if_it_is_asked_for(shout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "sha256", lambda *given: pytest.fail("a file was hashed"))
    assert required(version=">=1").get(TOKENIZERS, "shout")


# --------------------------------------------------------------------------------------------------------- lock


@pytest.fixture
def lock(shout: Path, tmp_path: Path) -> Path:
    """A lock of all plugins, without kernels."""
    path = tmp_path / "manifest.lock"
    plugins = {plugin.name: identity(plugin) for plugin in discover().manifests if plugin.usable}
    path.write_text(yaml.safe_dump({"infeng_lock": 2, "plugins": plugins, "libraries": {}, "kernels": {}}))
    return path


def test_locked_plugins_are_used_as_long_as_they_are_the_same(shout: Path, lock: Path) -> None:
    assert discover(kernels__lock=str(lock)).get(TOKENIZERS, "shout")
    (shout / "hooks.py").write_text(HOOKS.format(name="shout") + "\nimport infeng_core; infeng_core.loud = 1\n")
    plugins = discover(kernels__lock=str(lock))
    assert plugins.get(POLICIES, "fair") and plugins.get(TOKENIZERS, "hf")
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"manifest\.lock: plugin shout: locked as 1\.0\.0 \w{64}, installed is 1\.0\.0 "
        ):
            plugins.get(TOKENIZERS, "shout")
    import infeng_core

    assert not hasattr(infeng_core, "loud")


@pytest.mark.parametrize(("plugin", "hook"), [("convert", CONVERTERS), ("convert", LOCATORS), ("core", TOKENIZERS)])
def test_a_plugin_that_is_asked_in_its_turn_is_checked_too(lock: Path, plugin: str, hook: Any) -> None:
    lock.write_text(lock.read_text().replace(f"  {plugin}: ", f"  {plugin}: 9 "))
    with pytest.raises(PluginError, match=f"plugin {plugin}: locked as 9 "):
        dict(discover(kernels__lock=str(lock)).each(hook))


def test_a_plugin_that_was_installed_later_is_an_error_when_it_takes_part(lock: Path, install: Install) -> None:
    install("whisper")
    plugins = discover(kernels__lock=str(lock))
    assert plugins.get(TOKENIZERS, "shout")
    with pytest.raises(PluginError, match="plugin whisper: not in the lock: restore what was locked, or write"):
        plugins.get(TOKENIZERS, "whisper")


def test_commands_run_whatever_the_lock_says_so_that_it_can_be_written_again(lock: Path) -> None:
    lock.write_text("infeng_lock: 1\n")
    plugins = discover(kernels__lock=str(lock))
    assert plugins.command("plugins") and plugins._ask(plugins.plugin("shout"), COMMANDS)
