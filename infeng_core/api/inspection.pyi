"""Names for commands that show what an installation has: plugins, libraries, and the choice of kernels."""

from infeng_core._native import ABI_VERSION, barrier_times
from infeng_core.kernels.check.verdicts import cache_dir as verdicts_folder
from infeng_core.kernels.check.verdicts import sha256
from infeng_core.kernels.choice import Decision
from infeng_core.kernels.libraries import LibraryState, library_states, missing_wheels
from infeng_core.kernels.lock import write as lock_text
from infeng_core.kernels.problems import describe_all
from infeng_core.kernels.problems import fields as problem_fields
from infeng_core.machine.placement import pages as pages_of
from infeng_core.machine.system import writable
from infeng_core.plug.discovery import Plugin
from infeng_core.plug.fingerprint import fingerprint
from infeng_core.plug.hookspecs import HOOKS
from infeng_core.plug.notes import note, shortened
from infeng_core.plug.pins import identity
from infeng_core.plug.plugin import PluginManifest
from infeng_core.plug.reason import CODES as REASONS
from infeng_core.plug.reason import Reason, abi_mismatch
from infeng_core.settings.config import OPS

__all__ = [
    "ABI_VERSION", "HOOKS", "OPS", "REASONS", "Decision", "LibraryState", "Plugin", "PluginManifest", "Reason",
    "abi_mismatch", "barrier_times", "describe_all", "fingerprint", "identity", "library_states", "lock_text",
    "missing_wheels", "note", "pages_of", "problem_fields", "sha256", "shortened", "verdicts_folder", "writable",
]  # fmt: skip
