"""The interface of a locator, which maps a name other than a local path to a local path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from infeng_core.errors import ModelError

Located = Literal["model", "configuration", "adapter"]
"""The kind of result: a whole model, the part of a model that gives its sizes, or an adapter."""


class NoWeightsError(ModelError):
    """A repository holds no model that its locator knows; ``files`` are the paths in it.

    The other locators are then asked to ``refuse`` these files.
    """

    def __init__(self, what: str, why: str, remedy: str, files: Sequence[str]) -> None:
        """Keep the paths."""
        super().__init__(what, why, remedy)
        self.files = files


class Locator(Protocol):
    """Locates models and adapters by name. Locators are registered through the hook ``infeng_locators``."""

    def locate(self, reference: str, kind: Located) -> Path | None:
        """Return the local path of ``reference``, downloaded if necessary; raises ModelError.

        None: the reference does not have the form of this locator's names.
        """

    def refuse(self, reference: str, files: Sequence[str]) -> None:
        """Raise ModelError that says how to name a model of the hub repository ``reference`` for this locator.

        ``files`` are the paths in it, none of them safetensors. If none is for this locator, nothing is raised.
        """
