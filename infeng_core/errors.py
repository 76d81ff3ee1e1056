"""Errors that a user reads: each names the thing, the reason and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InfengError(Exception):
    """Base of every error that the engine raises on purpose.

    ``str(error)`` is ``"<what>: <why>: <remedy>"`` with empty parts left out; the command line prints exactly that.
    """

    exit_status = 1

    def __init__(self, what: str, why: str = "", remedy: str = "") -> None:
        """Take the thing that failed, why it failed and what the reader can do about it."""
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(": ".join(part for part in (what, why, remedy) if part))


class UsageError(InfengError):
    """The call itself is wrong: an unknown option, a missing file name, a value out of range."""

    exit_status = 2


class ManifestError(UsageError):
    """An engine manifest does not fit its schema."""


class ModelError(InfengError):
    """A model directory or one of its files is broken, incomplete or not supported."""


class AdapterError(InfengError):
    """An adapter is broken or does not fit its base model."""


class PluginError(InfengError):
    """A plugin is broken, contradicts another or cannot run on this machine."""


class KernelError(InfengError):
    """No kernel fits an operation, a forced one cannot run, or one failed while running."""


class RequestError(UsageError):
    """A request cannot be served: too long for the context, an impossible sampling parameter, no prompt."""


class ResourceError(InfengError):
    """Memory, disk or another resource does not suffice."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a typing error could have turned into ``word``."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_key_remedy(word: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown key: the likely intention, or all that is known."""
    names = sorted(known)
    close = closest(word, names)
    return f"did you mean `{close}`?" if close else f"known here: {', '.join(names)}"
