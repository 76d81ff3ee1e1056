"""The static part of a plugin, ``plugin.yaml``, read without importing or loading the plugin."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.errors import ManifestError, printable
from infeng_core.machine.cpu import NEEDS
from infeng_core.plug.hookspecs import HOOKS
from infeng_core.plug.kept import kept
from infeng_core.plug.wheels import WHEELS
from infeng_core.record import Entry, Record, entry
from infeng_core.settings import yamlfile
from infeng_core.settings.config import OPS, SCHEMA, setting
from infeng_core.settings.schema import (
    Bool,
    Choice,
    Int,
    Kind,
    ListOf,
    MapOf,
    Name,
    Number,
    Optional,
    Pattern,
    Size,
    Text,
    checked,
)
from infeng_core.settings.yamlfile import Document, type_name

if TYPE_CHECKING:
    from infeng_core.plug.notes import Unknown
    from infeng_core.yamltree import Key

VERSION = 1
API_VERSION = 1
"""Of the hooks and of what they take and give; raised when an old plugin would meet something else."""
API_MINOR = 0
"""Raised when something is added to them; a plugin of a newer minor is used without what this engine does not know."""

ARCHES = ("x86_64", "aarch64")


class _Abi(Kind):
    """A version such as "0.11"; a YAML number loses zeros, so it must be text."""

    def check(self, value: object) -> tuple[int, int]:
        major, dot, minor = value.partition(".") if isinstance(value, str) else ("", "", "")
        if not (dot and major.isdigit() and minor.isdigit()):
            raise ValueError(f'expected a version in quotes such as "0.11", found {value!r}')
        return int(major), int(minor)


class _Api(Kind):
    """A major version such as 1, or with a minor in quotes: "1.2"; a YAML number loses zeros."""

    def check(self, value: object) -> tuple[int, int]:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        found = re.fullmatch(r"([1-9]\d{0,3})(?:\.(\d{1,4}))?", text, re.ASCII) if isinstance(text, str) else None
        if not found:
            raise ValueError(f'expected a version such as 1, or in quotes "1.2", found {printable(repr(value), 80)}')
        return int(found[1]), int(found[2] or 0)


class _Version(Kind):
    """A version such as 0.1.0, quoted or not."""

    def check(self, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"expected a version such as 0.1.0, found {type_name(value)}")
        return str(value)


_NAMES = ListOf(Name())
_TOP: Mapping[str, Kind | None] = {  # None: read by a separate function
    "infeng_plugin": None,
    "name": Name(),
    "version": _Version(),
    "description": Text(),
    "abi": _Abi(),
    "requires": None,
    "library": Text(),
    "python": Text(),
    "api": _Api(),
    "settings": None,
    "provides": None,
}


class _Anything(Kind):
    """A value that is checked later, when its type is known."""

    def check(self, value: object) -> object:
        return value


_SETTING: Mapping[str, Kind | None] = {
    "type": Choice(("text", "bool", "int", "number", "size", "choice", "texts", "map")),
    "default": _Anything(),
    "help": Text(),
    "low": Number(),
    "high": Number(),
    "of": ListOf(Text()),
}
_KINDS = sorted({hook.kind for hook in HOOKS if hook.gives != "list"} | WHEELS.keys() - {"commands"})
_PROVIDES: Mapping[str, Kind | None] = {
    "kernels": None,
    "commands": None,
    "hooks": _NAMES,  # declared by other plugins
    "ops": _NAMES,  # that its kernel library describes
    **dict.fromkeys(_KINDS, _NAMES),
}


class KernelNote(Record):
    """A kernel as plugin.yaml announces it; ``*`` in its name stands for any text, so one note may cover several."""

    name: str
    op: str
    features: tuple[str, ...] = ()

    def covers(self, kernel: str) -> bool:
        """Return whether the note covers the kernel of that name."""
        return fnmatchcase(kernel, self.name)


class PluginManifest(Record):
    """A valid plugin.yaml."""

    name: str
    version: str
    source: Path
    description: str = ""
    abi: tuple[int, int] | None = None
    arch: str | None = None
    features: tuple[str, ...] = ()
    library: Path | None = None
    python: str | None = None
    api: tuple[int, int] = (1, 0)
    settings: Mapping[str, Entry] = entry(default_factory=dict)
    kernels: tuple[KernelNote, ...] = ()
    provides: Mapping[str, tuple[str, ...]] = entry(default_factory=dict)  # "tokenizers" -> names
    commands: Mapping[str, str] = entry(default_factory=dict)  # name -> help
    notes: tuple[str, ...] = ()  # about what this engine does not know


def read_plugin(path: Path) -> PluginManifest:
    """Read and check ``path``; raises ManifestError naming file, line, key, reason and remedy.

    A command reads each file several times, so an unchanged file is parsed once.
    """
    try:
        found = path.stat()
    except OSError:
        return _checked(yamlfile.read(path))  # this call raises the error
    return _read_once(path, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


@lru_cache(maxsize=256)
def _read_once(path: Path, *state: int) -> PluginManifest:
    return _checked(kept().document(path, state))


def _checked(document: Document) -> PluginManifest:
    path, notes = document.path, list["Unknown"]()
    document.require_version("infeng_plugin", VERSION, "version of plugin files")
    top = _section(document, (), _TOP, notes)
    for key in ("name", "version"):
        if key not in top:
            raise ManifestError(document.place(()), f"`{key}` is missing")
    if "library" in top and "abi" not in top:
        raise ManifestError(
            document.place(("library",)), "a library needs `abi`", 'add the ABI it is built for: abi: "0.11"'
        )
    api = top.get("api", (API_VERSION, 0))
    if api[0] == API_VERSION and api[1] > API_MINOR:
        outcome = f"this engine has {show_api()}, and leaves out what came later"
        notes.append((_place(document, ("api",)), "hook API", show_api(api), (), outcome))
    arch, features = _requires(document, ("requires",), notes, {"arch": Name(), "features": _NAMES})
    provides = _section(document, ("provides",), _PROVIDES, notes)
    library = top.get("library")
    if library is not None and (Path(library).name != library or len(library) > 200):
        raise ManifestError(
            document.place(("library",)), "not a bare file name", "put the library beside its plugin.yaml"
        )
    return PluginManifest(
        name=top["name"],
        version=top["version"],
        source=path,
        description=top.get("description", ""),
        abi=top.get("abi"),
        arch=arch,
        features=features,
        library=path.parent / library if library is not None else None,
        python=top.get("python"),
        api=api,
        settings=_settings(document, top["name"]),
        kernels=_kernels(document, notes, (*OPS, *provides.get("ops", ()))),
        provides=provides,
        commands=_commands(document, notes),
        notes=_notes(notes),
    )


def show_api(version: tuple[int, int] = (API_VERSION, API_MINOR)) -> str:
    """Return a version of the hooks as plugin.yaml has it."""
    return ".".join(map(str, version))


def _section(
    document: Document, key: Key, known: Mapping[str, Kind | None], notes: list[Unknown] | None, data: object = None
) -> dict[str, Any]:
    """Return the checked values of the mapping at ``key``, or of ``data``; keys whose kind is None are left out.

    Keys that are not known are left out with a note, or an error where ``notes`` is None.
    """
    found = _at(document.data, key) if data is None else data
    if notes is not None and isinstance(found, Mapping):
        for name in _strangers(found, known):
            notes.append((_place(document, (*key, name)), "key", name, known, "it is left out"))
        found = {name: value for name, value in found.items() if name in known}
    return checked(document, key, found, known)


def _notes(unknown: Sequence[Unknown]) -> tuple[str, ...]:
    if not unknown:
        return ()
    from infeng_core.plug.notes import notes  # few plugins need it

    return notes(unknown)


def _place(document: Document, key: Key) -> str:
    return document.place(key).removeprefix(f"{document.path.parent}/")


def _requires(
    document: Document, key: Key, notes: list[Unknown], known: Mapping[str, Kind | None]
) -> tuple[str | None, tuple[str, ...]]:
    """Return architecture and features; what this engine does not know is kept, as a feature that no processor has."""
    found = _section(document, key, known, notes)
    arch, features = found.get("arch"), found.get("features", ())
    place, outcome = _place(document, (*key, "features")), "what needs it is left out"
    notes += [(place, "feature", name, NEEDS, outcome) for name in features if name not in NEEDS]
    if arch is not None and arch not in ARCHES:
        notes.append((_place(document, (*key, "arch")), "architecture", arch, ARCHES, "the plugin is left out"))
    return arch, (*features, *(f"requires.{name}" for name in _strangers(_at(document.data, key), known)))


def _strangers(data: object, known: Mapping[str, Kind | None]) -> list[str]:
    return [name for name in data if name not in known] if isinstance(data, Mapping) else []


def _items(document: Document, key: Key) -> list[object]:
    data = _at(document.data, key)
    if data is None:
        return []
    if not isinstance(data, list):
        raise ManifestError(document.place(key), f"expected a list, found {type_name(data)}")
    return data


def _kernels(document: Document, notes: list[Unknown], ops: Collection[str]) -> tuple[KernelNote, ...]:
    """Return the kernels, without those of other ops than ``ops``; one that needs an unknown feature cannot run."""
    found: dict[str, KernelNote] = {}
    for index, _ in enumerate(_items(document, ("provides", "kernels"))):
        key = ("provides", "kernels", str(index))
        item = _section(document, key, {"name": Pattern(), "op": Text(), "requires": None}, notes)
        if "name" not in item or "op" not in item:
            raise ManifestError(document.place(key), "a kernel needs `name` and `op`")
        if item["name"] in found:
            raise ManifestError(document.place(key), f"kernel {item['name']} is listed twice")
        _, features = _requires(document, (*key, "requires"), notes, {"features": _NAMES})
        found[item["name"]] = KernelNote(item["name"], item["op"], features)
        if item["op"] not in ops:
            notes.append((_place(document, key), "op", item["op"], ops, "its kernel is left out"))
    return tuple(note for note in found.values() if note.op in ops)


def _commands(document: Document, notes: list[Unknown]) -> dict[str, str]:
    commands: dict[str, str] = {}
    for index, value in enumerate(_items(document, ("provides", "commands"))):
        key = ("provides", "commands", str(index))
        data = {"name": value} if isinstance(value, str) else value
        item = _section(document, key, {"name": Name(), "help": Text()}, notes, data)
        if "name" not in item:
            raise ManifestError(document.place(key), "a command needs a name")
        commands[str(item["name"])] = str(item.get("help", ""))
    return commands


def _settings(document: Document, plugin: str) -> dict[str, Entry]:
    """Return the plugin's settings as fields like the engine's own."""
    place = document.place(("settings",))
    declared = _at(document.data, ("settings",)) or {}
    if not isinstance(declared, Mapping):
        raise ManifestError(place, f"expected keys and values, found {type_name(declared)}")
    if declared and plugin in (*SCHEMA, "infeng"):
        raise ManifestError(place, f"{plugin} is a section of the engine's own", "rename the plugin")
    found: dict[str, Entry] = {}
    for name in declared:
        key = ("settings", name)
        if not name.isidentifier():
            raise ManifestError(document.place(key), "a setting's name has letters, digits and _")
        given = _section(document, key, _SETTING, None)
        try:
            kind = _kind(given)
            default = None if given.get("default") is None else kind.check(given["default"])
        except ValueError as error:
            raise ManifestError(document.place(key), str(error)) from None
        found[name] = setting(default, kind if default is not None else Optional(kind), given.get("help", ""))
    return found


def _kind(given: Mapping[str, Any]) -> Kind:
    """Return the kind of a declared setting; raises ValueError."""
    low, high = given.get("low", -math.inf), given.get("high", math.inf)
    word, of = given.get("type", "text"), given.get("of", ())
    if (word == "choice") != bool(of):
        raise ValueError("`of` lists the words of a choice, and a choice needs it")
    if word == "int":
        return Int(int(max(low, -(2**63))), int(min(high, 2**63 - 1)))
    if word == "number":
        return Number(low, high)
    if word == "choice":
        return Choice(of)
    plain: dict[str, Kind] = {"text": Text(), "bool": Bool(), "size": Size(), "texts": ListOf(Text())}
    return plain.get(word) or MapOf(Text())


def _at(data: object, key: Key) -> object:
    for name in key:
        if isinstance(data, Mapping):
            data = data.get(name)
        elif isinstance(data, list):
            data = data[int(name)]
        else:
            return None
    return data
