"""Names for commands that show what an installation has: plugins, libraries, and the choice of kernels."""

from infeng_core._native import ABI_VERSION, barrier_times
from infeng_core.kernels.choice import Decision
from infeng_core.kernels.libraries import LibraryState, library_states, missing_wheels, sha256
from infeng_core.kernels.problems import fields as problem_fields
from infeng_core.kernels.problems import kind as problem_kind
from infeng_core.machine.placement import pages as pages_of
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.fingerprint import fingerprint
from infeng_core.plug.hookspecs import HOOKS
from infeng_core.plug.notes import note, shortened
from infeng_core.plug.pins import LOCK_VERSION, identity
from infeng_core.plug.plugin import PluginManifest
from infeng_core.plug.reason import CODES as REASONS
from infeng_core.plug.reason import DECLINES, READY, Reason, abi_mismatch
from infeng_core.settings.config import OPS

__all__ = [
    "ABI_VERSION", "DECLINES", "HOOKS", "LOCK_VERSION", "OPS", "READY", "REASONS", "Decision", "LibraryState", "Plugin",
    "PluginManifest", "Reason", "abi_mismatch", "barrier_times", "fingerprint", "identity",
    "library_states", "missing_wheels", "note", "pages_of", "problem_fields", "problem_kind", "sha256", "shortened",
]  # fmt: skip
