"""Typed reading of parsed JSON or YAML: every error names the file, the key, the reason and the remedy."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from infeng_core.errors import ModelError

# Format 1.0 writes these of a model and its rope where they are the default too, and ids cover what is written.
WRITTEN_DEFAULTS = {"attention_bias", "mlp_bias", "tie_embeddings", "bos_id", "eos_ids"}
WRITTEN_DEFAULTS |= {"kind", "factor", "low_freq_factor", "high_freq_factor", "original_max_positions"}


def written(record: Any) -> dict[str, Any]:
    """Return a dataclass as plain data, without the fields that came after format 1.0 and have their default.

    So what was written before such a field was known, and lacks it, says the same and keeps its id.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value != field.default or field.name in WRITTEN_DEFAULTS:
            plain = written(value) if dataclasses.is_dataclass(value) else value
            found[field.name] = list(plain) if isinstance(plain, tuple) else plain
    return found


class Fields:
    """A view of one mapping whose values are read with their type and bounds checked.

    A key that is absent or null takes its default; without a default it is an error. ``bool`` is never a number.
    """

    def __init__(self, data: object, source: Path | str, *, remedy: str = "", prefix: str = "") -> None:
        """Take the parsed value; it must be a mapping. ``prefix`` is put before keys in errors ("rope_scaling.")."""
        self.source = source
        self.remedy = remedy
        self.prefix = prefix
        if not isinstance(data, Mapping):
            raise ModelError(f"{source}", f"{prefix.rstrip('.') or 'the document'} is not a mapping", remedy)
        self.data: Mapping[Any, Any] = data
        self.asked: set[str] = set()
        """The keys that somebody has read or looked for."""

    def fail(self, key: str, why: str, remedy: str | None = None) -> NoReturn:
        """Raise ModelError for one key: ``why`` continues the sentence "<key> ..."."""
        raise ModelError(f"{self.source}", f"{self.prefix}{key} {why}", self.remedy if remedy is None else remedy)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in [low, high]."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"is {show(value)}, it must be a whole number")
        if not low <= value <= high:
            self.fail(key, f"is {show(value)}, it must be from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number in [low, high] as float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"is {show(value)}, it must be a number")
        if (isinstance(value, float) and not math.isfinite(value)) or not low <= value <= high:
            self.fail(key, f"is {show(value)}, it must be from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {show(value)}, it must be true or false")
        return value

    def numbers(self, key: str, low: float, high: float) -> tuple[float, ...]:
        """Return a list of finite numbers in [low, high]; 65536 at most."""
        value = self._get(key, None)
        if not isinstance(value, list | tuple) or len(value) > 1 << 16:
            self.fail(key, f"is {show(value)}, it must be a list of numbers")
        return tuple(Fields({key: item}, self.source, remedy=self.remedy).number(key, low, high) for item in value)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Return a list of integers in [low, high], 65536 at most; () where the key is absent or null."""
        value = self._get(key, ())
        if not isinstance(value, list | tuple) or len(value) > 1 << 16:
            self.fail(key, f"is {show(value)}, it must be a list of whole numbers")
        return tuple(Fields({key: item}, self.source, remedy=self.remedy).integer(key, low, high) for item in value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"is {show(value)}, it must be a string")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer in [low, high], or None where the key is absent or null."""
        return self.integer(key, low, high) if self.has(key) else None

    def version(self, key: str, major: int, again: str) -> int:
        """Return the minor number of a version of ``major``; ``again`` is the remedy for an older one."""
        version = self.text(key)
        numbers = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", version)
        if not numbers:
            self.fail(key, f"is {show(version)}, it must be a version such as 1.0")
        if int(numbers[1]) != major:
            remedy = "update infeng (pip install -U infeng-core)" if int(numbers[1]) > major else again
            self.fail(key, f"is {version}, this version of infeng reads {major}.x", remedy)
        return int(numbers[2])

    def mapping(self, key: str) -> Fields:
        """Return the mapping under ``key``."""
        value = self._get(key, None)
        if not isinstance(value, Mapping):
            self.fail(key, f"is {show(value)}, it must be a mapping")
        return Fields(value, self.source, remedy=self.remedy, prefix=f"{self.prefix}{key}.")

    def has(self, key: str) -> bool:
        """Return whether ``key`` is present and not null."""
        self.asked.add(key)
        return self.data.get(key) is not None

    def only(self, *known: str) -> None:
        """Raise ModelError for a key that is not among ``known``."""
        for key in self.data:
            if key not in known:
                self.fail(show(key), "is not a known key")

    def _get(self, key: str, default: object) -> object:
        self.asked.add(key)
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is null" if key in self.data else "is missing")
        return value


def show(value: object) -> str:
    """Return a value as it can stand in an error: short whatever its size."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    return reprlib.repr(value)
