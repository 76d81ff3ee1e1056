"""From a name that is no local path to one: the face of a locator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from infeng_core.errors import ModelError

Located = Literal["model", "configuration", "adapter"]
"""What is looked for: a whole model, as much of one as tells its sizes, or an adapter."""


class NoWeightsError(ModelError):
    """A repository holds no model that its locator knows; ``files`` are the paths in it.

    The other locators are then asked to ``refuse`` these files.
    """

    def __init__(self, what: str, why: str, remedy: str, files: Sequence[str]) -> None:
        """Keep the paths."""
        super().__init__(what, why, remedy)
        self.files = files


class Locator(Protocol):
    """A finder of models and adapters by name. Registered by name through the hook ``infeng_locators``."""

    def locate(self, reference: str, kind: Located) -> Path | None:
        """Return where ``reference`` lies on this machine, fetched if need be; raises ModelError.

        None: the reference has not the form of this locator's names.
        """

    def refuse(self, reference: str, files: Sequence[str]) -> None:
        """Raise ModelError that says how to name a model of the hub repository ``reference`` for this locator.

        ``files`` are the paths in it, none of them safetensors. Where none is of this locator, nothing is raised.
        """
