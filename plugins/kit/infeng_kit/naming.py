"""The name of a new plugin, and what follows from it."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass

from infeng_core.api import UsageError

MOST = 40
"""Characters of a name."""
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", re.ASCII)


@dataclass(frozen=True)
class Names:
    """One name in each of its forms."""

    name: str
    """Of the plugin and of its part: ``my-norm``."""

    @property
    def ident(self) -> str:
        """An identifier of C, Rust and Python."""
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        """The Python package."""
        return f"infeng_{self.ident}"

    @property
    def distribution(self) -> str:
        """The wheel, normalized as PEP 503 has it."""
        return f"infeng-{self.name.replace('_', '-')}"

    @property
    def class_name(self) -> str:
        """A name of a class: ``MyNorm``."""
        return "".join(word.capitalize() for word in self.ident.split("_"))


def names_of(name: str, taken: Collection[str]) -> Names:
    """Return the forms of ``name``; raises UsageError for a name that is none, or that is in use.

    taken: names of installed plugins, of sections of the settings and of commands.
    """
    what = f"name {name[: MOST + 1]!r}"
    form = "choose one such as my-norm: a small letter, then small letters and digits, with single - or _ between"
    if len(name) > MOST:
        raise UsageError(what, "it is too long", f"choose one of at most {MOST} characters")
    if not _NAME.fullmatch(name):
        raise UsageError(what, "it is no name of a plugin", form)
    names = Names(name)
    if keyword.iskeyword(name) or name.startswith("infeng"):
        raise UsageError(what, "it is reserved", form)
    if name in taken or importlib.util.find_spec(names.module) is not None:
        raise UsageError(what, "it is in use here", "choose another one, or uninstall the plugin that has it")
    return names
