"""Plugins made for a test: a folder with plugin.yaml and a library compiled from a few lines of C."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import infeng_abi
import yaml

from infeng_core import _native
from infeng_core.kernels.choice import Selector
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

DATA = Path(__file__).parent / "core" / "kernels" / "data"
OWN = ("first", "second")
"""Names of a test's own plugins, which rank before any that is installed."""


def aware(folder: Path, known: Path) -> Path:
    """Return ``folder`` as a cache that knows what another one has learnt of kernels, and nothing else."""
    if (known / "verdicts").is_dir():
        shutil.copytree(known / "verdicts", folder / "verdicts")
    return folder


@dataclass
class Compiler:
    """Makes shared objects of sources in ``DATA``, each once per set of macros."""

    folder: Path

    def __call__(self, source: str = "embed.c", **macros: object) -> Path:
        """Return the shared object of ``source``, compiled with ``-DNAME=value`` for every macro."""
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        path = self.folder / (hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:16] + ".so")
        if not path.exists():
            compiler = os.environ.get("CXX", "c++") if source.endswith(".cc") else os.environ.get("CC", "cc")
            include = f"-I{infeng_abi.include_dir()}"
            command = [compiler, "-shared", "-fPIC", "-O1", include, *infeng_abi.CFLAGS, *flags, str(DATA / source)]
            subprocess.run([*command, "-lm", "-o", str(path)], check=True)
        return path


@dataclass
class Workshop:
    """Makes plugins and assembles selectors over them."""

    folder: Path
    compile: Compiler
    embed: ClassVar[_native.Problem] = _native.Problem("embed", weight="f32", rows=(1, 8), n=96, k=100)  # for embed.c
    rmsnorm: ClassVar[_native.Problem] = _native.Problem("rmsnorm", rows=(1, 8), n=100, k=100)  # for rmsnorm.c
    gather: ClassVar[_native.Problem] = _native.Problem("rmsnorm", rows=(1, 8), n=100, k=100, needs=["row_gather"])

    def plugin(
        self, name: str, source: str = "embed.c", content: bytes | None = None, yaml_text: str | None = None,
        features: list[str] | None = None, kernels: list[object] | None = None, abi: str = "0.11", **macros: object,
    ) -> Path:  # fmt: skip
        """Write plugin ``name`` and return its plugin.yaml; ``macros`` as in data/embed.c."""
        op = source.partition(".")[0]
        folder = self.folder / "plugins" / name
        folder.mkdir(parents=True, exist_ok=True)
        if content is None:
            content = self.compile(source, **{"LIBRARY": f'"{name}"', **macros}).read_bytes()
        library = folder / f"lib{name}.so"
        library.unlink(missing_ok=True)  # as installers do: a mapped file must not change under its user
        library.write_bytes(content)
        data = {
            "infeng_plugin": 1,
            "name": name,
            "version": "1.0",
            "abi": abi,
            "requires": {"features": features or []},
            "library": f"lib{name}.so",
            "provides": {"kernels": kernels or [{"name": f"{op}_tiny", "op": op}]},
        }
        path = folder / "plugin.yaml"
        path.write_text(yaml_text if yaml_text is not None else yaml.safe_dump(data))
        return path

    def plugins(self, *paths: Path, cpu: Cpu | None = None, **overrides: object) -> Plugins:
        """Discover the given plugins beside the installed ones; ``overrides`` as ``section__key``."""
        settings = {name.replace("__", "."): value for name, value in overrides.items()}
        return Plugins.discover(load_config(overrides={"plugins.paths": [str(p) for p in paths], **settings}), cpu)

    def selector(self, *paths: Path, cpu: Cpu | None = None, **overrides: object) -> Selector:
        """Return a selector over the given plugins, which rank before all installed ones by default."""
        texts = [path.read_text(errors="replace") for path in paths if path.is_file()]
        own = [name for name in OWN if any(name in text for text in texts)]
        order = ",".join([*own, "*,amx,avx512,avx2,reference"])
        plugins = self.plugins(*paths, cpu=cpu, **{"kernels__order": order, **overrides})
        return Selector(plugins, plugins.config, plugins.cpu)

    def reasons(self, selector: Selector) -> dict[str, str]:
        """Return candidate -> reason code for ``embed``."""
        return {f"{c.library}/{c.kernel}": c.reason.code for c in selector.decide(self.embed).candidates}

    def chosen(self, selector: Selector) -> str:
        """Return ``library/kernel`` of the kernel that serves ``embed``."""
        kernel = selector.choose(self.embed)
        return f"{kernel.library}/{kernel.name}"
