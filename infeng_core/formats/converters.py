"""The interface of a converter, which makes an engine-native directory of another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infeng_core.models.config import ModelConfig


@dataclass(frozen=True)
class Prepared:
    """An engine-native directory that a converter has made, in this call or earlier."""

    directory: Path
    key: str | None = None  # that its manifest must have; None: any
    seconds: float = 0.0  # that making it took
    tokenizer: Path | None = None  # the directory whose tokenizer is used; None: the engine-native one
    again: Callable[[], Prepared] | None = None
    """Makes the directory again where reading it raises ModelError; None: the error is final."""
    done: Callable[[bool], object] | None = None
    """Called with whether it was read, once it is not read any more: files that nothing needs then go."""


class Converter(Protocol):
    """A converter of models. Registered by name, as a factory, through the hook ``infeng_converters``."""

    def recognizes(self, source: Path) -> bool:
        """Return whether the file or directory ``source`` is a model that this converter prepares."""

    def prepare(self, source: Path, *, progress: bool) -> Prepared:
        """Return the engine-native directory of ``source``, made in the formats of the configuration.

        progress: whether a bar may be shown. Raises ModelError for a broken source, UsageError, ResourceError.
        """

    def outline(self, source: Path) -> tuple[ModelConfig, Mapping[str, str]]:
        """Return the sizes of ``source`` and the format that each tensor would have; raises ModelError."""

    def refuse(self, source: Path) -> None:
        """Raise a ModelError or UsageError that says what ``source`` lacks; called if no converter recognizes it.

        Return without an error for a kind of source that this converter does not know.
        """
