"""Settings of a plugin: declared in its plugin.yaml, set under its name, checked like the engine's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infeng_core import cli
from infeng_core.errors import ManifestError
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import TOKENIZERS
from infeng_core.plug.manager import Plugins

YAML = """infeng_plugin: 1
name: loud-voice
version: 1
api: 1
python: voice_hooks
settings:
  volume: {type: int, low: 1, high: 11, default: 3, help: how loud}
  pitch: {type: number, low: 0.5, high: 2}
  mood: {type: choice, of: [calm, angry], default: calm}
  shout: {type: bool, default: false}
  buffer: {type: size, default: 1MB}
  words: {type: texts, default: [a, b]}
  names: {type: map, default: {x: y}}
  title: {default: none}
provides: {tokenizers: [voice], commands: [voice]}
"""
HOOKS = """
from infeng_core.plug.markers import hookimpl
seen = []

class Voice:
    name = help = "voice"
    def __init__(self, settings): self.settings = settings
    def configure(self, parser): pass
    def run(self, arguments): print(self.settings["volume"]); return 0

@hookimpl
def infeng_tokenizers(settings): seen.append(settings); return {"voice": dict}

@hookimpl
def infeng_commands(settings): return [Voice(settings)]
"""
DEFAULTS = {
    "volume": 3,
    "pitch": None,
    "mood": "calm",
    "shout": False,
    "buffer": 1 << 20,
    "words": ("a", "b"),
    "names": {"x": "y"},
    "title": "none",
}


@pytest.fixture
def voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install the plugin; return a function from manifest text, environment and arguments to the settings it gets."""
    (tmp_path / "plugin.yaml").write_text(YAML)
    (tmp_path / "voice_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(tmp_path / "plugin.yaml"))
    manifest = tmp_path / "engine.yaml"

    def settings(text: str = "", **overrides: object) -> dict[str, object]:
        manifest.write_text(f"infeng: 1\n{text}")
        config = load_config(manifest, overrides={f"loud-voice.{key}": value for key, value in overrides.items()})
        plugins = Plugins.discover(config)
        plugins.get(TOKENIZERS, "voice")
        import voice_hooks

        found = voice_hooks.seen.pop()
        assert found == plugins.settings(plugins.plugin("loud-voice"))
        return dict(found)

    yield settings
    sys.modules.pop("voice_hooks", None)


def test_unset_settings_have_their_defaults(voice):
    assert voice() == DEFAULTS
    assert voice("loud-voice: {}\n") == DEFAULTS


def test_argument_outranks_environment_outranks_manifest(voice, monkeypatch):
    section = "loud-voice:\n  volume: 5\n  mood: angry\n  pitch: 1.5\n  names: {z: 1w}\n"
    assert voice(section) == {**DEFAULTS, "volume": 5, "mood": "angry", "pitch": 1.5, "names": {"z": "1w"}}
    monkeypatch.setenv("INFENG_LOUD_VOICE_VOLUME", "7")
    monkeypatch.setenv("INFENG_LOUD_VOICE_SHOUT", "yes")
    assert voice(section)["volume"] == 7
    assert voice(section, volume="9", words="c,d") == {
        **DEFAULTS, "volume": 9, "mood": "angry", "pitch": 1.5, "names": {"z": "1w"}, "shout": True, "words": ("c", "d")
    }  # fmt: skip


def test_each_setting_has_its_origin(voice, monkeypatch, tmp_path):
    voice("loud-voice:\n  volume: 5\n")
    config = load_config(tmp_path / "engine.yaml", overrides={"loud-voice.names.k": "v"})
    assert config.provenance["loud-voice.volume"].endswith("engine.yaml:3")
    assert config.provenance["loud-voice.mood"] == "default"
    assert config.values()["loud-voice.volume"] == 5
    assert config.extra["loud-voice"]["names"] == {"x": "y", "k": "v"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loud-voice:\n  volum: 5\n", r"engine.yaml:3: loud-voice.volum: unknown key: did you mean `volume`\?"),
        ("loud-voice:\n  volume: 12\n", "engine.yaml:3: loud-voice.volume: 12 is out of range: must be from 1 to 11"),
        ("loud-voice:\n  pitch: 9\n", "engine.yaml:3: loud-voice.pitch: 9 is out of range: must be from 0.5 to 2"),
        ("loud-voice: {mood: angri}\n", r"'angri' is not one of calm, angry \(did you mean `angry`\?\)"),
        ("loud-voice: 3\n", "engine.yaml:2: loud-voice: expected keys and values, found a whole number"),
        ("loud_voice: {}\n", r"engine.yaml:2: loud_voice: unknown key: did you mean `loud-voice`\?"),
    ],
)
def test_a_mistake_is_named_with_its_line(voice, text, words):
    with pytest.raises(ManifestError, match=words):
        voice(text)


def test_a_mistake_in_an_argument_or_a_variable_is_named(voice, monkeypatch):
    with pytest.raises(ManifestError, match=r"argument loud-voice.volum: unknown setting: did you mean `volume`\?"):
        voice(volum=3)
    monkeypatch.setenv("INFENG_LOUD_VOICE_VOLUME", "loud")
    with pytest.raises(ManifestError, match="variable INFENG_LOUD_VOICE_VOLUME: expected a whole number, found 'loud'"):
        voice()


def test_a_section_of_a_disabled_plugin_is_unknown(voice):
    with pytest.raises(ManifestError, match=r"engine\.yaml:3: loud-voice: unknown key"):
        voice("plugins: {disable: [loud-voice]}\nloud-voice: {volume: 3}\n")


def test_a_command_gets_its_settings(voice, monkeypatch, capsys):
    monkeypatch.setenv("INFENG_LOUD_VOICE_VOLUME", "4")
    assert cli.main(["voice"]) == 0
    assert capsys.readouterr().out == "4\n"
