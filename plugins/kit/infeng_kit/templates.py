"""The files of a new plugin: the folder ``templates``, with the plugin's names in place of ``@NAME@`` and others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from infeng_core.api import UsageError
from infeng_core.api.inspection import ABI_VERSION
from infeng_kit.kinds import KINDS
from infeng_kit.naming import Names

FOLDER = Path(__file__).with_name("templates")
_SUFFIX = ".in"
_PLACE = re.compile(r"@([A-Z]+)@")


def rendered(kind: str, names: Names) -> dict[str, str]:
    """Return the files of a project by their relative paths; KeyError for a kind that is none."""
    values = _values(kind, names)
    files = {}
    for folder in (FOLDER / "common", FOLDER / kind):
        for path in sorted(folder.rglob(f"*{_SUFFIX}")):
            name = path.relative_to(folder).as_posix().removesuffix(_SUFFIX).replace("__module__", names.module, 1)
            files[_filled(name, values)] = _filled(path.read_text(encoding="utf-8"), values)
    if kind == "kernel-rust":
        files["src/abi.rs"] = _abi()
    return files


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write files into a folder that is absent or empty; nothing is overwritten, and no link is followed.

    Raises UsageError for any other folder.
    """
    _require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)


def _require_empty(folder: Path) -> None:
    remedy = "name a folder that does not exist, or an empty one"
    if folder.is_symlink():
        raise UsageError(str(folder), "it is a link, which is not followed", remedy)
    if folder.exists() and not folder.is_dir():
        raise UsageError(str(folder), "it is no folder", remedy)
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(str(folder), "it is not empty, and nothing is overwritten", remedy)


def _values(kind: str, names: Names) -> dict[str, str]:
    found = KINDS[kind]
    values = {
        "NAME": names.name,
        "IDENT": names.ident,
        "MODULE": names.module,
        "DIST": names.distribution,
        "CLASS": names.class_name,
        "ABI": ".".join(map(str, ABI_VERSION)),
        "DESCRIPTION": found.description,
        "DEPENDENCIES": ", ".join(map(json.dumps, ("infeng-core", *found.requires))),
    }
    return values | {"USE": _filled(found.use, values), "NEXT": _filled(found.next, values)}


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: values[match[1]], text)


def _abi() -> str:
    import infeng_abi

    from infeng_kit.rust import module

    return module(infeng_abi.include_dir())
