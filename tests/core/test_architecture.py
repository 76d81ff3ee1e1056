"""Allowed imports between rooms, and that every hook is documented and used."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
from infeng_convert import api as convert_api
from infeng_convert.interfaces import hooks as conversion
from infeng_inspect import api as inspect_api
from infeng_peft import api as peft_api
from infeng_processors import api as processors_api
from infeng_tokenizers import api as tokenizers_api

import infeng_core
from infeng_core import api
from infeng_core.api import adapters, engines, formats, inspection, kernels, servers
from infeng_core.kernels.libraries import libraries
from infeng_core.plug import hookspecs
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import HOOKS, Hook
from infeng_core.plug.manager import Plugins

CORE = Path(infeng_core.__file__).parent
ROOT = Path(__file__).parents[2]

BASE = {"errors", "files", "log", "record", "version", "yamltree"}  # known by all
KNOWS = {
    **{leaf: set() for leaf in BASE},
    "_native": set(),
    "machine": {"_native"},
    "models": {"_native"},
    "requests.request": set(),  # what is asked for: plain data that batch.py may name
    "batch": {"requests.request"},
    "settings": {"_native", "machine"},
    "plug": {"_native", "machine", "settings"},
    "kernels": {"_native", "machine", "plug", "settings"},
    "formats": {"_native", "kernels", "machine", "models", "plug"},
    "adapters": {"formats"},
    "requests": {"_native", "requests.request", "batch"},
    "scheduling": {"requests.request", "batch"},
    "backends": {"_native", "formats", "kernels", "machine", "models", "settings", "batch"},
    "telemetry": {"adapters", "requests.request"},
    "engine": {"adapters", "backends", "formats", "kernels", "machine", "plug", "requests", "requests.request",
               "scheduling", "settings", "batch", "telemetry"},
    "cli": {"adapters", "backends", "engine", "formats", "kernels", "machine", "plug", "requests",
            "requests.request", "scheduling", "settings", "telemetry"},
    "api": {"_native", "adapters", "backends", "cli", "engine", "formats", "kernels", "machine", "models", "plug",
            "requests", "requests.request", "scheduling", "settings", "batch", "telemetry"},
}  # fmt: skip
"""Imports at run time. `builtin` registers everything and the package hands out the engine: neither is listed."""

TYPES = {"settings": {"formats", "requests", "scheduling"}, "formats": {"plug"}, "kernels": {"plug"},
         "models": {"plug", "scheduling"}, "backends": {"scheduling"}, "requests.request": {"backends"}}  # fmt: skip
"""Who may name a room's types in annotations without importing it: configuration and selector are handed to them."""


def rooms() -> Iterator[tuple[str, Path]]:
    for path in sorted(CORE.rglob("*.py")):
        room = _room(path.relative_to(CORE).with_suffix("").parts)
        if room not in ("__init__", "builtin"):
            yield room, path


def _room(parts: Sequence[str]) -> str:
    """Return the room of a module by the parts of its name below ``infeng_core``."""
    is_plain = tuple(parts[:2]) in (("requests", name) for name in ("checks", "parameters", "request"))
    return "requests.request" if is_plain else parts[0]


@functools.cache
def imported(path: Path) -> Sequence[str]:
    """Return the full names that a file imports, with those of ``from`` after their module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def edges(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (room, whether only for types) for every import of the core's own modules in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
        for child in test.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts[0] == "infeng_core":
                yield from ((_room([*parts[1:], alias.name]), id(node) in guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"{path}: relative import")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("infeng_core."):
                    yield _room(alias.name.split(".")[1:]), id(node) in guarded


def test_every_room_has_its_place():
    assert {room for room, _ in rooms()} <= KNOWS.keys()


def test_no_room_imports_a_forbidden_room():
    wrong = [
        f"{path.relative_to(CORE)} imports {target}"
        for room, path in rooms()
        for target, only_types in edges(path)
        if target not in KNOWS[room] | BASE | {room, "__version__"}
        and not (only_types and (room in TYPES.get(target, ()) or target in KNOWS[room]))
        and not (room == "cli" and target in ("Engine", "SamplingParams"))
    ]
    assert not wrong


def test_no_import_runs_backwards():
    done: set[str] = set()
    while len(done) < len(KNOWS):
        ready = {room for room, known in KNOWS.items() if room not in done and known <= done}
        assert ready, f"a cycle among {sorted(KNOWS.keys() - done)}"
        done |= ready


def test_modules_have_no_circular_imports_even_for_types():
    paths = sorted(CORE.rglob("*.py"))
    modules = {".".join(("infeng_core", *path.relative_to(CORE).with_suffix("").parts)): path for path in paths}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    del modules["infeng_core"]  # hands out what users import, when they ask for it
    imports = {name: set(module_imports(path, modules)) - {name} for name, path in modules.items()}
    done: set[str] = set()
    while len(done) < len(modules):
        ready = {name for name, known in imports.items() if name not in done and known <= done}
        assert ready, f"a circle among {sorted(modules.keys() - done)}"
        done |= ready


def module_imports(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Yield the core's modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{name}" if f"{node.module}.{name}" in modules else node.module for name in names]
        yield from (name for name in names if name in modules)


NATIVE = ROOT / "infeng_core" / "native"
NATIVE_KNOWS = {
    "machine": set(),
    "weights": {"machine"},
    "sampling": set(),
    "vocabulary": {"weights"},
    "library": {"machine", "vocabulary", "weights"},
    "program": {"library", "machine", "vocabulary", "weights"},
    "bind": {"library", "machine", "program", "sampling", "vocabulary", "weights"},
}
"""Which folders of the native core a folder includes headers of; the headers of infeng-abi are known by all."""


def native_includes(path: Path) -> set[str]:
    """Return the headers of the native core that a file includes, as they are written."""
    found = re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for name in found if (NATIVE / name).exists()}


def test_no_native_folder_includes_a_forbidden_folder():
    assert {path.name for path in NATIVE.iterdir() if path.is_dir()} == NATIVE_KNOWS.keys()
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for room, known in NATIVE_KNOWS.items()
        for path in sorted((NATIVE / room).iterdir())
        for name in sorted(native_includes(path))
        if "/" in name and name.split("/")[0] not in known | {room}
    ]
    assert not wrong


def test_native_code_of_plugins_includes_its_own_files_and_the_headers_of_the_abi_wheel():
    folders = [path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml")]
    sources = [(folder, path) for folder in folders for path in folder.rglob("*") if path.suffix in (".cc", ".c", ".h")]
    assert len(sources) > 50
    for folder, path in sources:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            header = (path.parent / name).resolve()
            assert header.is_file() and header.is_relative_to(folder), (path, name)
        for name in re.findall(r"^#include <(infeng/[^>]+)>", text, re.MULTILINE):
            assert any((ROOT / "abi" / folder / name).is_file() for folder in ("include", "sdk")), (path, name)


def test_kernels_include_no_headers_of_extension_modules():
    sources = [
        path for name in ("avx2", "avx512", "amx", "neon") for path in (ROOT / "plugins" / name).rglob("*.[ch]*")
    ]
    sources += [*(ROOT / "abi").glob("sdk/infeng/[os]*/*.h"), ROOT / "abi/include/infeng/abi.h"]
    sources = [path for path in sources if path.is_file()]
    assert len(sources) > 50
    assert not [path for path in sources if "infeng/extension/" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("known_by", [NATIVE_KNOWS, None], ids=["folders", "headers"])
def test_the_native_core_has_no_circular_includes(known_by):
    if known_by is None:
        known_by = {str(path.relative_to(NATIVE)): native_includes(path) for path in NATIVE.rglob("*.h")}
    done: set[str] = set()
    while len(done) < len(known_by):
        ready = {name for name, known in known_by.items() if name not in done and known <= done}
        assert ready, f"a circle among {sorted(known_by.keys() - done)}"
        done |= ready


MOST_LINES = {("*.py",): 22_490, ("*.cc", "*.h"): 10_500}
"""Lines of the core, without the reference kernels. These numbers may only fall: what a request does not pass through
belongs into a wheel."""


MOST_LINES_OF_BENCH = 10_000
"""Lines of Python of the wheel infeng-bench. What another wheel alone uses belongs into that wheel."""


def lines_of(folder: Path, patterns: tuple[str, ...]) -> int:
    found = [path for pattern in patterns for path in folder.rglob(pattern)]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in found if "reference" not in path.parts)


@pytest.mark.parametrize("patterns", MOST_LINES, ids=" ".join)
def test_the_core_stays_small(patterns):
    assert MOST_LINES[patterns] // 2 < lines_of(ROOT / "infeng_core", patterns) <= MOST_LINES[patterns]


def test_measurements_stay_small():
    lines = lines_of(ROOT / "plugins" / "bench" / "infeng_bench", ("*.py",))
    assert MOST_LINES_OF_BENCH // 2 < lines <= MOST_LINES_OF_BENCH


def test_a_forbidden_import_is_detected(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("from typing import TYPE_CHECKING\nfrom infeng_core.engine import Engine\n"
                    "import infeng_core.kernels\nif TYPE_CHECKING:\n    from infeng_core import cli\n")  # fmt: skip
    assert sorted(edges(path)) == [("cli", True), ("engine", False), ("kernels", False)]


def plugin_packages() -> set[str]:
    folders = {path.parent.name for path in (ROOT / "plugins").glob("*/infeng_*/__init__.py")}
    entries = importlib.metadata.entry_points(group="infeng.plugins")
    return (folders | {entry.value.partition(":")[0] for entry in entries}) - {"infeng_core"}


def test_every_plugin_wheel_requires_the_core_but_the_client_which_runs_without():
    wheels = {*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("docs/examples/**/pyproject.toml")}
    wheels.remove(ROOT / "plugins/client/pyproject.toml")
    assert len(wheels) >= 7
    for wheel in wheels:
        project = tomllib.loads(wheel.read_text())["project"]
        assert any(re.match(r"infeng-core\b", needed) for needed in project.get("dependencies", ())), wheel


def test_only_the_clients_commands_import_the_core():
    client = ROOT / "plugins/client/infeng_client"
    knowing = {path.relative_to(client).parts[0] for path in client.rglob("*.py")
               if "infeng_core" in path.read_text(encoding="utf-8")}  # fmt: skip
    assert knowing == {"commands", "hooks.py"}


def test_the_core_imports_no_plugin_by_name():
    packages = plugin_packages()
    assert packages
    hooks = {hook.name for hook in HOOKS}  # infeng_tokenizers is a hook and a package
    imported, named = (re.compile(rf"\b({'|'.join(sorted(names))})\b") for names in (packages, packages - hooks))
    for path in CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not named.search(node.value), f"{path}: {node.value!r}"
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(imported.search(name or "") for name in names), path


def test_plugins_import_nothing_of_the_core_but_its_api():
    modules = [*ROOT.glob("plugins/*/infeng_*/**/*.py"), *ROOT.glob("docs/examples/**/*.py")]
    assert len(modules) > 80
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("infeng_core") or re.match(r"infeng_core\.api(\.|$)", name), (
                    f"{path}: {name}"
                )


OPTIONAL = {("convert", "peft")}
"""A wheel and another that one of its commands imports when it is called, and names if it is missing."""


@pytest.mark.parametrize(
    ("wheel", "known"),
    [
        ("convert", {"bench", "calibrate", "gguf", "peers", "peft", "quantizer"}),
        ("gguf", {"peers"}),
        ("inspect", {"bench", "convert", "doctor", "kit", "profile", "quality", "serve"}),
        ("peft", {"bench", "gguf", "peers"}),
        ("processors", {"chat", "run", "serve"}),
        ("tokenizers", {"convert", "gguf", "grammar", "peers"}),
        ("serve", {"dialects", "ray", "route"}),
    ],
)
def test_plugins_import_nothing_of_another_but_its_api_and_require_its_wheel(wheel, known):
    modules = [*ROOT.glob("plugins/*/infeng_*/**/*.py"), *ROOT.glob("docs/examples/**/*.py")]
    users: set[Path] = set()
    for path in modules:
        if f"infeng_{wheel}" in path.parts or (path.relative_to(ROOT).parts[1], wheel) in OPTIONAL:
            continue
        found = [name for name in imported(path) if name.startswith(f"infeng_{wheel}")]
        assert all(name.startswith(f"infeng_{wheel}.api.") for name in found), path
        folder = path.parent.relative_to(ROOT)
        users |= {Path(*folder.parts[: 3 if folder.parts[0] == "docs" else 2])} if found else set()
    assert {user.name for user in users} >= known
    for user in users:
        project = tomllib.loads((ROOT / user / "pyproject.toml").read_text())["project"]
        assert any(needed.startswith(f"infeng-{wheel}") for needed in project["dependencies"]), user


def test_the_core_knows_gguf_by_the_name_of_its_wheel_alone():
    knowing = {path.relative_to(CORE).as_posix() for path in [*CORE.rglob("*.py"), *CORE.rglob("*.yaml")]
               if "gguf" in path.read_text(encoding="utf-8").lower()}  # fmt: skip
    assert knowing == {"plug/wheels.py"}


API = (
    api,
    adapters,
    engines,
    formats,
    inspection,
    kernels,
    servers,
    convert_api,
    inspect_api,
    peft_api,
    processors_api,
    tokenizers_api,
)


@pytest.mark.parametrize("module", API)
def test_the_api_is_documented_and_holds_what_it_names(module):
    page = (ROOT / "docs" / "adding-a-plugin.md").read_text(encoding="utf-8")
    assert not [name for name in module.__all__ if f"`{name}`" not in page]
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_core_imports_with_no_plugin_and_no_engine_loaded():
    import subprocess
    import sys

    code = "import sys, infeng_core.cli; print([m for m in sys.modules if m.startswith('infeng')])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['infeng_core.version', 'infeng_core', 'infeng_core.errors', 'infeng_core.cli']"


CONVERSION = [found for found in vars(conversion).values() if isinstance(found, Hook)]

NAMED = [hook for hook in (*HOOKS, *CONVERSION) if hook.gives != "list"]

KINDS = ("tokenizers", "policies", "drafters", "logit_processors", "prefix_stores", "observers", "model_families",
         "quant_formats", "backends", "run_options", "converters", "adapter_readers", "locators",
         "kernel_checks", "adapter_directories")  # fmt: skip


def test_the_hooks_are_exactly_the_designed_ones():
    assert {hook.kind for hook in HOOKS} == {*KINDS, "kernel_libraries", "commands"}
    kinds = ("sources", "quantizers", "calibrators", "model_readers", "model_writers")
    assert {hook.kind for hook in CONVERSION} == set(kinds)


@pytest.mark.parametrize("module", [hookspecs, conversion])
def test_the_annotated_type_of_each_hook_is_the_checked_one(module):
    for name, annotation in module.__annotations__.items():
        hook = getattr(module, name)
        if isinstance(hook, Hook):
            told = annotation.removeprefix("Hook[").removesuffix("]")
            assert told.endswith("Factory") if hook.gives == "factories" else told == hook.face().__name__


@pytest.mark.parametrize("hook", [*HOOKS, *CONVERSION], ids=lambda hook: hook.kind)
def test_every_hook_is_documented(hook):
    assert f"`{hook.name}`" in (ROOT / "docs" / "adding-a-plugin.md").read_text(encoding="utf-8")


def test_every_hook_is_called_for_a_plugin_and_implemented_by_the_core(tmp_path, monkeypatch, workshop):
    library = workshop.plugin("first").parent / "libfirst.so"
    imported = f"from pathlib import Path\npath = Path({str(library)!r})\n"
    (tmp_path / "six_hooks.py").write_text(imported + """
from infeng_core.plug.markers import hookimpl
from infeng_core.formats.quant import QuantFormat
from infeng_core.plug.hookspecs import KernelLibrary, RunOptions
called = set()
class Command:
    name = help = "six"
    def configure(self, parser): pass
    def run(self, arguments): return 0
class Backend:
    uses_kernels = False
    def block_bytes(self, shape, config): return 1
    def available_bytes(self): return None
    def compile(self, model, config, limits, selector): pass
class Options(RunOptions):
    pass
class Source:
    def reads(self, path): return False
    def write(self, path, directory): pass
class ModelReader:
    kind = "six"
    def supports(self): return {}
    def recognizes(self, path): return False
    def files(self, path): pass
    def has_weights(self, path): return True
    def describe(self, path): pass
    def open(self, path): pass
class ModelWriter:
    default = "f32"
    def writes(self, path): return False
    def plan(self, source, format): pass
    def write(self, source, destination, format, *, force, progress): pass
class AdapterReader:
    def recognizes(self, path): return False
    def load(self, path, model, dtype, scale, cache_bytes): pass
class Locator:
    def locate(self, reference, kind): return None
    def refuse(self, reference, files): pass
class Quantizer:
    def quantize(self, weights, target): pass
class KernelCheck:
    def of_library(self, path, sha256, reference, reference_sha256, cpu): pass
class Family:
    FAMILY, ARCHITECTURES = "six", ("SixForCausalLM",)
    def graph(self, config): pass
values = {"run_options": Options(), "tokenizers": dict, "policies": dict, "drafters": dict, "logit_processors": dict,
          "prefix_stores": dict, "observers": dict, "calibrators": dict, "converters": dict,
          "model_families": Family(), "sources": Source(), "quant_formats": QuantFormat("six", "f32"),
          "quantizers": Quantizer(), "backends": Backend(), "model_readers": ModelReader(),
          "model_writers": ModelWriter(), "adapter_readers": AdapterReader(), "locators": Locator(),
          "adapter_directories": dict, "kernel_checks": KernelCheck()}
@hookimpl
def infeng_kernel_libraries(): called.add("infeng_kernel_libraries"); return [KernelLibrary("first", path)]
@hookimpl
def infeng_commands(): called.add("infeng_commands"); return [Command()]
""" + "".join(f"""
@hookimpl(optionalhook=True)
def {hook.name}(): called.add("{hook.name}"); return {{"six": values["{hook.kind}"]}}
""" for hook in NAMED))  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "plugin.yaml"
    path.write_text(
        "infeng_plugin: 1\nname: six\nversion: 1\npython: six_hooks\n"
        "provides:\n  kernels: [{name: embed_tiny, op: embed}]\n  commands: [six]\n"
        + "".join(f"  {hook.kind}: [six]\n" for hook in NAMED)
    )
    plugins = Plugins.discover(load_config(overrides={"plugins.paths": [str(path)]}))
    for hook in NAMED:
        assert plugins.get(hook, "six") and "six" in dict(plugins.each(hook))
    assert plugins.command("six").name == "six"
    assert "first" in [library.name for library in libraries(plugins)]

    import six_hooks

    from infeng_core import builtin

    assert six_hooks.called == {hook.name for hook in (*HOOKS, *CONVERSION)}
    # Commands, conversion, readers of adapters, drafters, stores of prefixes and checks of kernels come in wheels.
    others = (
        "adapter_directories",
        "adapter_readers",
        "commands",
        "converters",
        "drafters",
        "kernel_checks",
        "locators",
        "prefix_stores",
        "run_options",
    )
    assert all(getattr(builtin, hook.name)() for hook in HOOKS if hook.kind not in others)
