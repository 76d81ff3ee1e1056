"""From a name that is no local path to one: the face of a locator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

Located = Literal["model", "configuration", "adapter"]
"""What is looked for: a whole model, as much of one as tells its sizes, or an adapter."""


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
