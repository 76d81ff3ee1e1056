"""What a plugin names and this engine does not know is left out with a note; the rest of the plugin is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from plugin_files import GOOD, HOOKS, discover

from infeng_core import cli
from infeng_core.errors import ManifestError, PluginError
from infeng_core.machine.cpu import detect
from infeng_core.plug.fingerprint import fingerprint
from infeng_core.plug.hookspecs import TOKENIZERS
from infeng_core.plug.notes import MOST
from infeng_core.plug.plugin import API_MINOR, API_VERSION, PluginManifest, read_plugin
from infeng_core.plug.reason import unmet

HEAD = "infeng_plugin: 1\nname: x\nversion: 1\n"
OWN = f"{API_VERSION}.{API_MINOR}"


def read(folder: Path, text: str) -> PluginManifest:
    path = folder / "plugin.yaml"
    path.write_text(HEAD + text)
    return read_plugin(path)


UNKNOWN = {
    "colour: red\n": "plugin.yaml:4: colour: the key colour is not known here: it is left out",
    "provide: {tokenizers: [a]}\n":
        "plugin.yaml:4: provide: the key provide is not known here: it is left out (did you mean `provides`?)",
    "provides: {tokenisers: [a]}\n":
        "plugin.yaml:4: provides.tokenisers: the key tokenisers is not known here: it is left out "
        "(did you mean `tokenizers`?)",
    "provides: {speakers: {loud: [1]}}\n":
        "plugin.yaml:4: provides.speakers: the key speakers is not known here: it is left out",
    "provides: {kernels: [{name: a, op: groupnorm}]}\n":
        "plugin.yaml:4: provides.kernels.0: the op groupnorm is not known here: its kernel is left out "
        "(did you mean `rmsnorm`?)",
    "provides:\n kernels:\n - {name: a, op: embed, requires: {features: [avx10_2]}}\n":
        "plugin.yaml:6: provides.kernels.0.requires.features: the feature avx10_2 is not known here: "
        "what needs it is left out (did you mean `avx2`?)",
    "provides: {kernels: [{name: a, op: embed, bound: 1e-3}]}\n":
        "plugin.yaml:4: provides.kernels.0.bound: the key bound is not known here: it is left out",
    "provides: {commands: [{name: a, group: b}]}\n":
        "plugin.yaml:4: provides.commands.0.group: the key group is not known here: it is left out",
    "requires: {arch: riscv64}\n":
        "plugin.yaml:4: requires.arch: the architecture riscv64 is not known here: the plugin is left out",
    f'api: "{API_VERSION}.{API_MINOR + 2}"\n':
        f"plugin.yaml:4: api: the hook API {API_VERSION}.{API_MINOR + 2} is not known here: "
        f"this engine has {OWN}, and leaves out what came later",
}  # fmt: skip


@pytest.mark.parametrize("text", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_unknown_word_is_left_out_with_a_note_that_has_its_line(tmp_path: Path, text: str) -> None:
    [note] = read(tmp_path, text).notes
    assert note.startswith(UNKNOWN[text]) and "\n" not in note


def test_what_is_known_has_no_notes() -> None:
    plugins = discover()
    assert not [note for plugin in plugins.manifests if plugin.manifest for note in plugin.manifest.notes]


def test_the_other_rows_are_used(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "flavour: {deep: [1, {a: b}]}\nprovides:\n speakers: 3\n tokenizers: [loud]\n kernels:\n"
        " - {name: gn, op: groupnorm}\n - {name: a, op: embed, requires: {features: [avx10_2]}}\n"
        " - {name: b, op: rope}\n commands: [{name: c, group: 4, help: does}]\n",
    )
    assert [kernel.name for kernel in found.kernels] == ["a", "b"]
    assert found.provides == {"tokenizers": ("loud",)} and found.commands == {"c": "does"}
    assert len(found.notes) == 5


@pytest.mark.parametrize(
    "requires", ["{features: [avx10_2, avx]}", "{os: linux}", "{features: [], os: [1]}", "{avx: true}"]
)
def test_a_requirement_that_is_not_known_is_one_that_no_processor_meets(tmp_path: Path, requires: str) -> None:
    found = read(
        tmp_path, f"requires: {requires}\nprovides: {{kernels: [{{name: a, op: rope, requires: {requires}}}]}}"
    )
    for features in (found.features, found.kernels[0].features):
        reason = unmet(detect(), found.arch, features)
        assert reason is not None and reason.code == "missing_features" and not reason.is_fault
        assert reason.text in (
            "needs avx10_2, which this engine does not know",
            "needs requires.os, which this engine does not know",
            "needs requires.avx, which this engine does not know",
        )


def test_a_plugin_that_needs_what_is_not_known_is_no_fault(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install("shout", yaml=GOOD + "requires: {{features: [avx10_2]}}\n")
    assert discover().plugin("shout").reason.code == "missing_features"
    install("whisper", yaml=GOOD + "requires: {{arch: riscv64}}\n")
    assert discover().plugin("whisper").reason.code == "wrong_arch"
    assert not capsys.readouterr().err


@pytest.mark.parametrize("api", ["0", "1.2", "true", "[1]", "{a: 1}", "-1", "1e9", '"1."', '"1.2.3"', '"١"', "9" * 90])
def test_an_api_that_is_no_version_is_an_error(tmp_path: Path, api: str) -> None:
    with pytest.raises(ManifestError, match="api: expected a version such as 1") as caught:
        read(tmp_path, f"api: {api}\n")
    assert len(str(caught.value)) < 400


def test_a_newer_minor_of_the_hooks_is_used_with_a_note(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install("shout", yaml=GOOD + f'api: "{API_VERSION}.{API_MINOR + 1}"\nfuture: {{{{}}}}\n')
    install("whisper", yaml=GOOD + f'api: "{OWN}"\n')
    plugins = discover()
    assert plugins.get(TOKENIZERS, "shout")(None, None).whose == "shout"
    notes = {name: plugins.plugin(name).manifest.notes for name in ("shout", "whisper")}  # type: ignore[union-attr]
    assert len(notes["shout"]) == 2 and not notes["whisper"]
    assert not capsys.readouterr().err


def test_another_major_of_the_hooks_is_refused_in_words(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install("shout", yaml=GOOD + f"api: {API_VERSION + 1}\n", init="raise RuntimeError('imported')")
    plugins = discover()
    assert plugins.plugin("shout").reason.code == "api_mismatch"
    why = f"written for hook API {API_VERSION + 1}.0, this engine has {OWN}"
    assert why in capsys.readouterr().err
    with pytest.raises(PluginError, match=f"tokenizer shout: plugin shout cannot be used: {why}: update infeng-core"):
        plugins.get(TOKENIZERS, "shout")


EXTRA = """
@hookimpl
def infeng_tokenisers(volume): return 3

@hookimpl(optionalhook=True)
def infeng_quantizers(): return {{}}
"""


def test_a_hook_that_does_not_exist_is_left_out_and_the_others_are_used(install: Any) -> None:
    install("shout", hooks=HOOKS + EXTRA)
    plugins = discover()
    assert plugins.get(TOKENIZERS, "shout")(None, None).whose == "shout"
    assert plugins.plugin("shout").usable


def test_a_hook_of_another_wheel_that_is_left_out_harms_nobody_who_declares_it_later(install: Any) -> None:
    from infeng_convert.interfaces.hooks import QUANTIZERS

    install("shout", hooks=HOOKS + EXTRA.replace("(optionalhook=True)", "").replace("izers():", "izers(volume):"))
    plugins = discover()
    plugins.get(TOKENIZERS, "shout")
    assert "nearest" in dict(plugins.each(QUANTIZERS))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 0
    return capsys.readouterr().out


def test_notes_are_in_list_info_and_doctor(
    install: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shout", yaml=GOOD + "colour: red\n", hooks=HOOKS + EXTRA, init="raise RuntimeError('imported')")
    first = "shout: plugin.yaml:6: colour: the key colour is not known here: it is left out"
    second = "shout: hooks.py: the hook infeng_tokenisers is not known here: it is left out (did you mean `infeng_tok"
    for words in (["plugins", "list"], ["plugins", "info", "shout"], ["doctor"]):
        text = said(capsys, *words)
        assert first in text and second in text and "infeng_quantizers" not in text
    [facts] = [one for one in json.loads(said(capsys, "plugins", "list", "--json")) if one["name"] == "shout"]
    assert facts["state"] == "ready" and len(facts["notes"]) == 2


@pytest.mark.parametrize(
    "source", ["def (", "\0", "(" * 5000, "x = '" + "\ud800" * 3, "@hookimpl\nclass infeng_x: pass"]
)
def test_a_module_that_cannot_be_parsed_has_no_notes(
    install: Any, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    path = install("shout").parent / "hooks.py"
    path.write_bytes(source.encode("utf-8", "surrogatepass"))
    assert "is not known here" not in said(capsys, "plugins", "list")


def test_doctor_names_the_wheel_with_kernels_for_this_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "kernels for this processor are not installed"
    assert missing not in said(capsys, "doctor")
    monkeypatch.setattr("infeng_core.kernels.libraries.KERNELS", {"avx999": ()})
    assert f"{missing}: pip install infeng-avx999" in said(capsys, "doctor")


def test_a_plugin_without_a_sha256_is_described_all_the_same(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = install("shout")
    os.mkfifo(path.parent / "pipe")
    assert "pipe: cannot be read (it is no regular file)" in said(capsys, "plugins", "info", "shout")


@pytest.mark.parametrize("length", [300, 5000])
def test_names_that_no_file_can_have_are_errors_and_no_crash(
    install: Any, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    install("shout", yaml=GOOD.replace("infeng_{name}.hooks", "x" * length))
    install("whisper", yaml=GOOD + f'abi: "0.11"\nlibrary: {"x" * length}\n')
    assert "shout" in said(capsys, "plugins", "list")
    assert discover().plugin("whisper").reason.code == "invalid"
    assert len(fingerprint(discover().plugin("shout"))) == 64


def test_notes_are_bounded_whatever_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f" - {{name: k{i}, op: layer{i}}}\n" for i in range(4000))
    asked = []
    monkeypatch.setattr("infeng_core.plug.notes.suggestion", lambda word, known: asked.append(word) or "")
    notes = read(tmp_path, f"provides:\n kernels:\n{rows}").notes
    assert len(asked) == MOST  # looking for a likely intention takes long
    assert len(notes) == MOST + 1 and notes[-1] == f"and {4000 - MOST} more"
    huge = "x" * 100_000
    notes = read(tmp_path, f"{huge[:1000]}: 1\nprovides: {{kernels: [{{name: a, op: {huge}}}]}}\n").notes
    assert len(notes) == 2 and max(map(len, notes)) < 600


def test_a_note_shows_control_characters_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text(HEAD + '"a\\e[2Jb": 1\nprovides: {kernels: [{name: k, op: "c\\nd\\u202e"}]}\n')
    notes = read_plugin(path).notes
    assert len(notes) == 2 and all(note.isprintable() for note in notes)
    text = said(capsys, "plugins", "list", "--set", f"plugins.paths={path}")
    assert "\\x1b[2J" in text and "\x1b" not in text and "\u202e" not in text


WRONG = [
    "3",
    "text",
    "true",
    "null",
    "[1, 2]",
    "[{a: 1}]",
    "{a: [1]}",
    "{1: 2}",
    "[" * 10 + "]" * 10,
    "2001-01-01",
    "1e400",
]
KEYS = ("name", "version", "description", "abi", "requires", "library", "python", "api", "settings", "provides")
INNER = ("requires: {features: %s}", "requires: {arch: %s}", "provides: {kernels: %s}", "provides: {hooks: %s}",
         "provides: {commands: %s}", "provides: {kernels: [%s]}", "provides: {kernels: [{name: a, op: %s}]}",
         "provides: {kernels: [{name: %s, op: rope}]}", "provides: {kernels: [{name: a, op: rope, requires: %s}]}",
         "provides: {kernels: [{name: a, op: rope, requires: {features: %s}}]}", "%s: 1")  # fmt: skip


@pytest.mark.parametrize("value", WRONG)
def test_a_value_of_any_type_is_read_or_refused_with_its_place(tmp_path: Path, value: str) -> None:
    path = tmp_path / "plugin.yaml"
    whole = {"infeng_plugin": "1", "name": "x", "version": "1"}
    texts = ["".join(f"{key}: {one}\n" for key, one in (whole | {key: value}).items()) for key in KEYS]
    for text in [*texts, *(HEAD + inner % value for inner in INNER)]:
        path.write_text(text)
        try:
            found = read_plugin(path)
        except ManifestError as error:
            assert str(error).startswith(f"{path}:")
        else:
            assert isinstance(found.notes, tuple)
