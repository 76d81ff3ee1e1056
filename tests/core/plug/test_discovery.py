"""Plugins are found by entry point or by name, read as static files, and broken ones are skipped."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from plugin_files import GOOD, HOOKS, discover

from infeng_core import builtin
from infeng_core.errors import ManifestError, PluginError
from infeng_core.formats.lookup import format_lookup
from infeng_core.kernels.libraries import libraries, library_states
from infeng_core.plug.assembly import load_config
from infeng_core.plug.discovery import sources
from infeng_core.plug.hookspecs import BACKENDS, POLICIES, QUANT_FORMATS, TOKENIZERS
from infeng_core.plug.plugin import read_plugin


def test_an_installed_plugin_is_found_without_importing_it(install):
    install("shout", init="raise RuntimeError('imported')")
    plugin = discover().plugin("shout")
    assert plugin.usable
    assert plugin.origin == "infeng-shout 1.0"
    assert "infeng_shout" not in sys.modules


def test_only_requested_parts_are_imported(install):
    install("shout")
    install("whisper")
    plugins = discover()
    assert "shout" in plugins.commands() and "whisper" in plugins.names("tokenizers")
    assert not {"infeng_shout.hooks", "infeng_whisper.hooks"} & sys.modules.keys()
    assert plugins.get(TOKENIZERS, "shout")(None, None).whose == "shout"
    assert "infeng_shout.hooks" in sys.modules
    assert "infeng_whisper.hooks" not in sys.modules
    assert [name for name, _ in plugins.each(TOKENIZERS)].count("shout") == 1


def test_the_working_directory_is_never_searched(install, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(GOOD.format(name="here"))
    monkeypatch.chdir(folder)
    assert "here" not in [plugin.name for plugin in discover().manifests]
    assert "here" in [plugin.name for plugin in discover(plugins__paths="plugin.yaml").manifests]


@pytest.mark.parametrize("package", ["", "infeng_here/"])
def test_a_plugin_that_a_manifest_names_needs_no_installation(tmp_path, package):
    folder = tmp_path / package
    folder.mkdir(exist_ok=True)
    name = f"here_{len(package)}_hooks"
    (folder / f"{name}.py").write_text(HOOKS.format(name="here"))
    module = f"{package.replace('/', '.')}{name}"
    path = folder / "plugin.yaml"
    path.write_text(GOOD.format(name="here").replace("infeng_here.hooks", module))
    before = list(sys.path)
    try:
        assert discover(plugins__paths=str(path)).get(TOKENIZERS, "here")(None, None).whose == "here"
        assert sys.path == [*before, str(tmp_path)]
    finally:
        sys.path[:] = before
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(("infeng_here", name))]:
            del sys.modules[loaded]


def test_a_development_install_is_found_through_its_package(install, tmp_path, monkeypatch):
    path = install("shout")
    elsewhere = tmp_path / "checkout"
    elsewhere.mkdir()
    path.parent.rename(elsewhere / "infeng_shout")
    monkeypatch.syspath_prepend(elsewhere)
    assert discover().plugin("shout").source == elsewhere / "infeng_shout" / "plugin.yaml"
    assert "infeng_shout" not in sys.modules


def test_two_plugins_of_one_name_are_an_error_that_names_both(install):
    first = install("shout")
    second = install("whisper", yaml=GOOD.replace("name: {name}\n", "name: shout\n", 1))
    with pytest.raises(PluginError) as caught:
        discover()
    assert "plugin shout: two plugins have this name" in str(caught.value)
    assert str(first) in str(caught.value) and str(second) in str(caught.value)
    assert not discover(plugins__disable="shout").plugin("shout").usable


def test_the_core_cannot_be_disabled():
    with pytest.raises(PluginError, match="plugin core: cannot be disabled"):
        discover(plugins__disable="core")


BROKEN = {
    "a YAML error": ({"yaml": "infeng_plugin: [1\n"}, "plugin.yaml:2"),
    "a value of another type": ({"yaml": GOOD + "description: [a]\n"}, "expected text, found a list"),
    "no such version of the file": ({"yaml": GOOD.replace("plugin: 1", "plugin: 7")}, "expected 1"),
    "a module that raises": ({"hooks": "1 / 0"}, "ZeroDivisionError"),
    "a module that exits": ({"hooks": "raise SystemExit(9)"}, "SystemExit: 9"),
    "no such module": ({"yaml": GOOD.replace(".hooks", ".hokks")}, "ModuleNotFoundError"),
    "a hook that does not exist": ({"hooks": HOOKS.replace("def infeng_tok", "def infeng_tock")}, "promises the tok"),
    "a hook with other arguments": ({"hooks": HOOKS.replace("tokenizers()", "tokenizers(x)")}, "x"),
    "a hook that raises": ({"hooks": HOOKS.replace("return {{", "raise OSError() #")}, "tokenizers() raised OSError"),
    "a hook that panics": ({"hooks": HOOKS.replace("return {{", "raise BaseException('panic') #")}, "panic"),
    "a hook that returns nothing of use": (
        {"hooks": HOOKS.replace("return {{", "return 3 #")}, "the result of infeng_tokenizers() is 3, not dict"),
    "a hook that returns another kind of thing": (
        {"hooks": HOOKS.replace("return {{\"{name}\": Tokenizer}}", "return {{\"{name}\": 'text'}}")},
        "that is 'text', which cannot be called"),
    "a hook that returns odd names": ({"hooks": HOOKS.replace('{{"{name}"', "{{3")}, "has an entry 3 that is 3, not"),
    "a broken promise": ({"hooks": HOOKS.replace('return {{"{name}"', 'return {{"other"')}, "promises the tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_costs_one_warning(install, capsys, kind):
    broken, words = BROKEN[kind]
    install("shout", **broken)
    install("whisper")
    plugins = discover()
    with pytest.raises(PluginError):
        plugins.get(TOKENIZERS, "shout")
    assert plugins.get(TOKENIZERS, "whisper")(None, None).whose == "whisper"
    assert libraries(plugins)
    assert not plugins.plugin("shout").usable
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    for word in ("plugin shout is not used", "code=invalid", "remedy=", words):
        assert word in warnings[0]
    with pytest.raises(PluginError, match="plugin shout"):
        discover(kernels__strict=True).get(TOKENIZERS, "shout")


def test_a_missing_plugin_yaml_is_named(install, capsys):
    install("shout").unlink()
    assert discover().plugin("shout").reason.code == "missing_file"
    assert "infeng_shout/plugin.yaml" in capsys.readouterr().err


def test_a_name_that_no_plugin_provides_is_an_error_that_lists_the_known_ones(install):
    install("shout")
    with pytest.raises(PluginError, match=r"tokenizer shuot: no plugin provides it: did you mean `shout`\?"):
        discover().get(TOKENIZERS, "shuot")
    with pytest.raises(PluginError, match=r"backend nothing: no plugin provides it: known here: .*native"):
        discover().get(BACKENDS, "nothing")
    with pytest.raises(PluginError, match="scheduler x: no plugin provides it"):
        discover().get(POLICIES, "x")
    with pytest.raises(PluginError, match=r"quant format int4-g6: no plugin provides it: did you mean `int4-g64`\?"):
        format_lookup(discover())("int4-g6")


def test_a_name_of_a_disabled_plugin_is_an_error_that_says_so(install):
    install("shout")
    with pytest.raises(PluginError, match=r"tokenizer shout: plugin shout cannot be used: listed in plugins.disable"):
        discover(plugins__disable="shout").get(TOKENIZERS, "shout")


def test_a_name_that_two_plugins_provide_is_an_error(install):
    install("shout")
    install("whisper", yaml=GOOD.replace("tokenizers: [{name}]", "tokenizers: [shout]"))
    with pytest.raises(PluginError, match="tokenizer shout: provided by several plugins: shout, whisper"):
        discover().get(TOKENIZERS, "shout")


def test_a_library_can_come_from_a_hook(install, workshop):
    library = workshop.plugin("first").parent / "libfirst.so"
    hooks = f"""
from pathlib import Path
from infeng_core.plug.markers import hookimpl
from infeng_core.plug.hookspecs import KernelLibrary

@hookimpl
def infeng_kernel_libraries(): return [KernelLibrary("first", Path({str(library)!r}))]
"""
    kernels = "provides: {{kernels: [{{name: embed_tiny, op: embed}}]}}\n"
    install("finder", yaml=GOOD.split("provides")[0] + kernels, hooks=hooks)
    selector = workshop.selector()
    assert workshop.chosen(selector) == "first/embed_tiny"


WRONG = {
    "infeng_plugin: 1\nversion: 1\n": "plugin.yaml:1: `name` is missing",
    "infeng_plugin: 1\nname: x\n": "plugin.yaml:1: `version` is missing",
    "infeng_plugin: 1\nname: x\nversion: 1\nlibrary: x.so\n":
        'plugin.yaml:4: library: a library needs `abi`: add the ABI it is built for: abi: "0.11"',
    "infeng_plugin: 1\nname: x\nversion: 1\nabi: 0.9\n":
        'plugin.yaml:4: abi: expected a version in quotes such as "0.11", found 0.9',
    'infeng_plugin: 1\nname: x\nversion: 1\nabi: "0.11"\nlibrary: ../x.so\n':
        "plugin.yaml:5: library: not a bare file name: put the library beside its plugin.yaml",
    "infeng_plugin: 1\nname: x\nversion: 1\nrequires: {features: avx2}\n":
        "plugin.yaml:4: requires.features: expected a list, found text",
    "infeng_plugin: 1\nname: x\nversion: 1\nrequires: {arch: [x86_64]}\n":
        "plugin.yaml:4: requires.arch: expected text, found a list",
    "infeng_plugin: 1\nname: x\nversion: 1\nprovides: {kernels: [{name: a, op: embed, requires: [avx2]}]}\n":
        "plugin.yaml:4: provides.kernels.0.requires: expected keys and values, found a list",
    "infeng_plugin: 1\nname: x\nversion: 1\nprovides:\n kernels:\n - {name: a, op: embed}\n - {name: a, op: embed}\n":
        "plugin.yaml:7: provides.kernels.1: kernel a is listed twice",
    "infeng_plugin: 1\nname: x\nversion: 1\nprovides: {kernels: [{name: a}]}\n":
        "plugin.yaml:4: provides.kernels.0: a kernel needs `name` and `op`",
    "infeng_plugin: 1\nname: x\nversion: 1\nprovides: {commands: demo}\n":
        "plugin.yaml:4: provides.commands: expected a list, found text",
    'infeng_plugin: 1\nname: "x: error"\nversion: 1\n':
        "plugin.yaml:2: name: 'x: error' is no name: up to 64 letters, digits and . _ + -",
    'infeng_plugin: 1\nname: x\nversion: 1\nprovides: {commands: ["a\\nb"]}\n':
        r"plugin.yaml:4: provides.commands.0.name: 'a\nb' is no name",
    "infeng_plugin: 1\nname: x\nversion: 1\napi: one\n":
        "plugin.yaml:4: api: expected a version such as 1, or in quotes \"1.2\", found 'one'",
    "infeng_plugin: 1\nname: x\nversion: 1\napi: 1.10\n":
        "plugin.yaml:4: api: expected a version such as 1, or in quotes \"1.2\", found 1.1",
    "infeng_plugin: 1\nname: model\nversion: 1\nsettings: {a: {type: int}}\n":
        "plugin.yaml:4: settings: model is a section of the engine's own",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings: [a]\n":
        "plugin.yaml:4: settings: expected keys and values, found a list",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings:\n a-b: {type: int}\n":
        "plugin.yaml:5: settings.a-b: a setting's name has letters, digits and _",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings:\n a: {type: integer}\n":
        "plugin.yaml:5: settings.a.type: 'integer' is not one of text, bool, int,",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings:\n a: {type: int, high: 3, default: 4}\n":
        "plugin.yaml:5: settings.a: 4 is out of range: must be from -9223372036854775808 to 3",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings:\n a: {type: choice}\n":
        "plugin.yaml:5: settings.a: `of` lists the words of a choice, and a choice needs it",
    "infeng_plugin: 1\nname: x\nversion: 1\nsettings:\n a: {typ: choice}\n":
        "plugin.yaml:5: settings.a.typ: unknown key: did you mean `type`?",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_mistake_in_plugin_yaml_is_named_with_its_line(tmp_path, text):
    path = tmp_path / "plugin.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        read_plugin(path)
    assert WRONG[text] in str(caught.value)


def test_the_core_provides_exactly_what_its_plugin_yaml_announces():
    plugins = discover()
    core = plugins.plugin("core")
    for hook in (TOKENIZERS, POLICIES, QUANT_FORMATS, BACKENDS):
        assert sorted(core.names(hook.kind)) == sorted(getattr(builtin, hook.name)())
    assert not core.manifest.commands and not hasattr(builtin, "infeng_commands")


def test_installed_kernel_plugins_provide_exactly_what_they_announce():
    for state in library_states(discover(kernels__order="*")):
        if state.native is not None:
            unused = set(state.plugin.kernels)
            for kernel in state.native.kernels:
                notes = [note for note in state.plugin.kernels if note.covers(kernel.name)]
                assert {note.op for note in notes} == {kernel.op}, f"{state.name}/{kernel.name}"
                needed = {feature for note in notes for feature in note.features}
                assert needed == set(kernel.features), f"{state.name}/{kernel.name}"
                unused -= set(notes)
            assert not unused, state.name


def test_a_file_that_changes_is_read_again(tmp_path: Path):
    path = tmp_path / "plugin.yaml"
    path.write_text("infeng_plugin: 1\nname: one\nversion: 1.0.0\n")
    first = read_plugin(path)
    assert read_plugin(path) is first
    path.write_text("infeng_plugin: 1\nname: two\nversion: 1.0.0\n")
    assert read_plugin(path).name == "two"


def test_a_wheel_that_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "plugin.yaml").write_text(f"infeng_plugin: 1\nname: {name}\nversion: 1.0.0\n")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[infeng.plugins]\n{name} = {name}\n")
        os.utime(tmp_path, ns=(0, time.time_ns()))  # two writes within a tick of the clock look like one

    def found() -> set[str]:
        return {source.name for source in sources(load_config())} & {"early", "late"}

    install("early")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found() == {"early"}
    install("late")
    assert found() == {"early", "late"}
