"""Hook of this plugin: the check of kernel libraries."""

from __future__ import annotations

from infeng_core.api import hookimpl
from infeng_core.api.kernels import KernelCheck


@hookimpl
def infeng_kernel_checks() -> dict[str, KernelCheck]:
    """Return the check by a trial in a child process."""
    from infeng_inspect.first_use import FirstUseChecks

    return {"trial": FirstUseChecks()}
