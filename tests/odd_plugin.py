"""A plugin with one part of each kind, all sound until a test spoils them by a few lines of code of its own."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HEAD = """
import numpy as np
from infeng_core.plug.markers import hookimpl
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.formats.quant import QuantFormat
from infeng_core.backends.native.executable import NativeBackend
from infeng_tokenizers.api import HfTokenizer

class Odd(Exception): pass
class Tokenizer(HfTokenizer): pass
class Policy(FirstCome): pass
class Executable:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
class Backend(NativeBackend):
    def compile(self, *args): return Executable(NativeBackend().compile(*args))
class Command:
    name, help = "odd", "is odd"
    def configure(self, parser): pass
    def run(self, arguments): return 0
class Other(Command):
    name = "even"
    def run(self, arguments): print("even"); return 0
tokenizers, policies, backends = {"odd": Tokenizer}, {"odd": Policy}, {"odd": Backend()}
quant_formats, commands = {"odd": QuantFormat("odd", "f32")}, [Command(), Other()]
"""
HOOKS = "".join(
    f"\n@hookimpl\ndef infeng_{kind}(): return {kind}\n"
    for kind in ("tokenizers", "policies", "backends", "quant_formats", "commands")
)
YAML = """infeng_plugin: 1
name: odd
version: 1
python: {module}
provides:
  {{tokenizers: [odd], policies: [odd], backends: [odd], quant_formats: [odd], commands: [odd, even]}}
"""


@contextlib.contextmanager
def installer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give a function that installs the plugin in ``folder`` with ``code`` behind its parts; the last one counts."""
    numbers = itertools.count()
    monkeypatch.syspath_prepend(folder)

    def install(code: str) -> None:
        module = f"odd_{folder.name}_{next(numbers)}"
        (folder / f"{module}.py").write_text(HEAD + code + "\n" + HOOKS)
        (folder / "plugin.yaml").write_text(YAML.format(module=module))
        monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(folder / "plugin.yaml"))

    yield install
    for name in [name for name in sys.modules if name.startswith(f"odd_{folder.name}")]:
        del sys.modules[name]
