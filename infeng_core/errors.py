"""Errors that a user reads: each names the thing, the reason and the remedy."""

from __future__ import annotations


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
