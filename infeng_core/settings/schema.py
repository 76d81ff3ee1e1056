"""Kinds of settings: the values that each takes, read from YAML and from text."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.errors import LONGEST, ManifestError, closest, unknown_key_remedy
from infeng_core.record import Record
from infeng_core.settings.yamlfile import Document, type_name

if TYPE_CHECKING:
    from infeng_core.yamltree import Key

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Kind(ABC):
    """A type of setting. Both methods raise ValueError with a message for the user."""

    @abstractmethod
    def check(self, value: object) -> Any:
        """Return ``value``, from YAML or Python, in its final form."""

    def parse(self, text: str) -> Any:
        """Return the value of ``text`` (a shell argument or an environment variable)."""
        return self.check(text)


class Text(Record, Kind):
    """Any text that is not empty."""

    def check(self, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"expected text, found {type_name(value) if value != '' else 'an empty one'}")
        if "\0" in value:
            raise ValueError("expected text, found some with a NUL character")
        return value


class Name(Text):
    """A word that fits into commands, tables and file names."""

    def check(self, value: object) -> str:
        name = super().check(value)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", name):
            raise ValueError(f"{name[:100]!r} is no name: up to 64 letters, digits and . _ + -")
        return name


class Pattern(Name):
    """A name in which ``*`` may stand for any part."""

    def check(self, value: object) -> str:
        super().check(value.replace("*", "a") if isinstance(value, str) else value)
        return str(value)


class Choice(Record, Kind):
    """One of a closed list of words."""

    words: tuple[str, ...]

    def check(self, value: object) -> str:
        if value not in self.words or not isinstance(value, str):
            raise ValueError(f"{value!r} is not one of {', '.join(self.words)}{suggestion(str(value), self.words)}")
        return value


class Bool(Record, Kind):
    """true or false."""

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, found {type_name(value)}")
        return value

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise ValueError(f"expected true or false, found {text!r}")


class Int(Record, Kind):
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    def check(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, found {type_name(value)}")
        if not self.low <= value <= self.high:
            wanted = f"{self.low}" if self.low == self.high else f"from {self.low} to {self.high}"
            raise ValueError(f"{value} is out of range: must be {wanted}")
        return value

    def parse(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"expected a whole number, found {text!r}") from None
        return self.check(number)


class Number(Record, Kind):
    """A finite number from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected a number, found {type_name(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is out of range: must be from {self.low:g} to {self.high:g}")
        return value

    def parse(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"expected a number, found {text!r}") from None
        return self.check(number)


class Size(Record, Kind):
    """A number of bytes: 536870912 or "512MB" (MB and MiB both mean 2**20 bytes, as memory is counted)."""

    def check(self, value: object) -> int:
        if isinstance(value, str):
            return self.parse(value)
        return Int(1, 1 << 50).check(value)

    def parse(self, text: str) -> int:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
        if not match:
            raise ValueError(f'expected bytes or a size such as "512MB", found {text!r}')
        return Int(1, 1 << 50).check(int(min(float(match[1]), 1 << 51) * UNITS[match[2].upper()]))


class OrWord(Record, Kind):
    """One of a few words or a value of ``kind``."""

    words: tuple[str, ...]
    kind: Kind

    def check(self, value: object) -> Any:
        return value if isinstance(value, str) and value in self.words else self._explain(self.kind.check, value)

    def parse(self, text: str) -> Any:
        return text if text in self.words else self._explain(self.kind.parse, text)

    def _explain(self, read: Any, value: object) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{error} (or the word {' or '.join(self.words)})") from None


class Auto(OrWord):
    """The word ``auto`` or a value of ``kind``."""

    def __init__(self, kind: Kind) -> None:
        """Allow ``auto`` beside ``kind``."""
        super().__init__(("auto",), kind)


class Optional(Record, Kind):
    """Nothing (``null``) or a value of ``kind``."""

    kind: Kind

    def check(self, value: object) -> Any:
        return None if value is None else self.kind.check(value)

    def parse(self, text: str) -> Any:
        return None if text in ("", "null") else self.kind.parse(text)


class ListOf(Record, Kind):
    """A list; as text, its items separated by commas, or YAML: [a, b]."""

    kind: Kind

    def check(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, found {type_name(value)}")
        items = tuple(self.kind.check(item) for item in value)
        if len(set(items)) != len(items):
            raise ValueError("the same item is listed twice")
        return items

    def parse(self, text: str) -> tuple[Any, ...]:
        if text.lstrip().startswith("["):
            return self.check(_flow(text))
        return self.check([self.kind.parse(item.strip()) for item in text.split(",") if item.strip()])


class OneOrMore(ListOf):
    """As ListOf; a single item may stand without a list."""

    def check(self, value: object) -> tuple[Any, ...]:
        return super().check([value] if isinstance(value, str) else value)


class MapOf(Record, Kind):
    """Names to values; as text, ``name=value`` pairs separated by commas, or YAML: {name: value}."""

    kind: Kind

    def check(self, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected names and values, found {type_name(value)}")
        return {str(name): self.kind.check(item) for name, item in value.items()}

    def parse(self, text: str) -> dict[str, Any]:
        if text.lstrip().startswith("{"):
            return self.check(_flow(text))
        result: dict[str, Any] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, equals, item = (part.strip() for part in pair.partition("="))
            if not equals or not name:
                raise ValueError(f"expected name=value, found {pair!r}")
            result[name] = self.kind.parse(item)
        return result


class Requirement(Kind):
    """What a plugin must be: {version: ">=0.3", sha256: 64 hexadecimal digits}, both optional."""

    def check(self, value: object) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected keys and values such as {{version: '>=0.3'}}, found {type_name(value)}")
        for key in value:
            if key not in ("version", "sha256"):
                raise ValueError(f"unknown key {str(key)[:LONGEST]!r}: known here: sha256, version")
        found = {key: Text().check(text) for key, text in value.items()}
        if "version" in found:
            from packaging.specifiers import InvalidSpecifier, SpecifierSet

            try:
                SpecifierSet(found["version"])
            except InvalidSpecifier:
                raise ValueError(f"version: {found['version'][:LONGEST]!r} is none such as '>=0.3' (PEP 440)") from None
        if "sha256" in found and not re.fullmatch(r"[0-9a-f]{64}", found["sha256"]):
            raise ValueError("sha256: expected 64 hexadecimal digits, as `infeng plugins info NAME` prints them")
        return found

    def parse(self, text: str) -> dict[str, str]:
        return self.check(_flow(text))


def checked(document: Document, key: Key, data: object, kinds: Mapping[str, Kind | None]) -> dict[str, Any]:
    """Return the values of ``data``, the mapping at ``key``, in their final form; {} for null.

    Keys whose kind is None are known, and left out. Raises ManifestError naming file, line and key.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ManifestError(document.place(key), f"expected keys and values, found {type_name(data)}")
    result = {}
    for name, value in data.items():
        place = document.place((*key, name))
        if name not in kinds:
            raise ManifestError(place, "unknown key", unknown_key_remedy(name, kinds))
        kind = kinds[name]
        if kind is not None:
            try:
                result[name] = kind.check(value)
            except ValueError as error:
                raise ManifestError(place, str(error)) from None
    return result


def _flow(text: str) -> object:
    """Return the YAML value of a shell argument or a variable, parsed as files are: no anchors, bounded nesting."""
    from infeng_core import yamltree

    try:
        return yamltree.parse(text, Path("text"), ManifestError)[0]
    except ManifestError as error:
        raise ValueError(f"not valid YAML: {text[:LONGEST]!r} ({error.why})") from None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean `order`?)`` if a known word is close to ``word``, else ''."""
    close = closest(word, known)
    return f" (did you mean `{close}`?)" if close else ""
