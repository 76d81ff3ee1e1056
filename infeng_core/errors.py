"""Errors for users: each names the thing, the reason and the remedy, on one line of bounded length."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

LONGEST = 1000
"""Characters of each part of a message; the middle of a longer one is cut."""

REMEDIES = {
    errno.EACCES: "check its permissions",
    errno.EAGAIN: "raise the limit of processes and threads (ulimit -u)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENAMETOOLONG: "check the name",
    errno.ENOENT: "check the path",
    errno.ENOMEM: "free some memory",
    errno.ENOSPC: "free some space, or write elsewhere",
}
"""The remedy for an error of the operating system."""


class InfengError(Exception):
    """Base of every error that the engine raises on purpose.

    ``str(error)`` is ``"<what>: <why>: <remedy>"`` with empty parts left out; the command line prints exactly that.
    It is always one line: parts may come from a file, so control characters are escaped and long parts cut.
    """

    exit_status = 1

    def __init__(self, what: str, why: str = "", remedy: str = "") -> None:
        """what: the thing that failed; why: the reason; remedy: what the reader can do about it."""
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(": ".join(printable(part) for part in (what, why, remedy) if part))


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


class EndedError(RequestError):
    """A request ended, by its timeout or a cancellation, before its result was computed."""


class OverloadedError(InfengError):
    """Too many requests wait already: this one is refused, and may be tried again."""

    def __init__(self, why: str, *, reason: str, retry_after: float) -> None:
        """why: for a reader; reason: the bound, "requests", "tokens" or "wait"; retry_after: seconds to wait."""
        super().__init__("request", why, f"try again in {retry_after:.1f} s")
        self.reason = reason
        self.retry_after = retry_after


class ResourceError(InfengError):
    """Memory, disk or another resource is too small."""


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Return ``text`` as one line for a terminal: unprintable characters as ``\n`` or ``\u202e``, the middle cut."""
    if len(text) > longest:
        note = f" ... ({len(text)} characters) ... "
        half = max(1, (longest - len(note)) // 2)
        text = f"{text[:half]}{note}{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def without_controls(text: str) -> str:
    """Return a text of several lines for a terminal: control characters become U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends


def explained(error: BaseException) -> InfengError:
    """Return any error as one for users: the system's errors by name, the rest as an internal error."""
    if isinstance(error, InfengError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return InfengError(names or "the system", error.strerror or str(error), REMEDIES.get(error.errno, ""))
    if isinstance(error, MemoryError):
        return ResourceError("memory", "there is not enough", "free some, or use a smaller model, format or cache")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return ResourceError("threads", "the system starts no more of them", REMEDIES[errno.EAGAIN])
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # from Path.expanduser, for an unknown user
        return UsageError("a path with ~", "there is no such user, or no home", "write the whole path")
    if isinstance(error, RecursionError):
        return InfengError("input", "it is nested too deeply", "check the file or the text")
    if isinstance(error, UnicodeError):
        return InfengError("text", str(error), "use UTF-8")
    why = f"{type(error).__name__}: {error}"
    return InfengError("internal error", why, "report it, with what INFENG_LOG=debug prints")


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a typing error could have turned into ``word``."""
    from difflib import get_close_matches  # only mistakes need it

    matches = get_close_matches(word[:LONGEST], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_key_remedy(word: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown key: the likely intention, or all known keys."""
    names = sorted(known)
    close = closest(word, names)
    return f"did you mean `{close}`?" if close else f"known here: {', '.join(names)}"
