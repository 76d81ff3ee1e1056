"""A plugin of a few lines, installed as pip leaves it, and the plugins of settings."""

from __future__ import annotations

from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

GOOD = """infeng_plugin: 1
name: {name}
version: 1.0.0
python: infeng_{name}.hooks
provides: {{tokenizers: [{name}], commands: [{{name: {name}, help: does it}}]}}
"""
HOOKS = """
from infeng_core.plug.markers import hookimpl

class Command:
    name = help = "{name}"
    def configure(self, parser): parser.add_argument("word")
    def run(self, arguments): print(arguments.word.upper()); return 3

class Tokenizer:
    vocab_size, bos_id, eos_id, whose = 1, None, None, "{name}"
    def __init__(self, directory, config): pass
    def encode(self, texts): return [[0] for _ in texts]
    def decode(self, tokens): return ""
    def detokenizer(self, prompt): return self

@hookimpl
def infeng_tokenizers(): return {{"{name}": Tokenizer}}

@hookimpl
def infeng_commands(): return [Command()]
"""


def discover(**overrides: object) -> Plugins:
    return Plugins.discover(load_config(overrides={k.replace("__", "."): v for k, v in overrides.items()}))
