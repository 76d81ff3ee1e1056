"""Reasons why something is or is not used: a code for machines, a sentence and a remedy for people."""

from __future__ import annotations

from collections.abc import Iterable

from infeng_core import _native
from infeng_core.errors import printable
from infeng_core.machine.cpu import NEEDS, Cpu, closure
from infeng_core.record import Record

CODES = {
    "ready": "can be used",
    "chosen": "is used",
    "outranked": "another candidate ranks higher",
    "not_forced": "the manifest forces another one",
    "disabled": "switched off by the manifest or the environment",
    "not_in_order": "kernels.order does not name it",
    "wrong_arch": "made for another processor architecture",
    "missing_features": "the processor lacks a feature it needs",
    "abi_mismatch": "built for another version of the kernel ABI",
    "api_mismatch": "written for another version of the hooks",
    "invalid": "its plugin.yaml or its hooks are wrong",
    "missing_file": "a file that it names is not there",
    "not_a_library": "the file is not a library that this machine can load",
    "missing_symbol": "the library does not export infeng_library",
    "untried": "no plugin tries kernel libraries before they are used",
    "crashed": "it killed the process that tried it",
    "endless": "it did not finish",
    "silent": "it did not answer in time",
    "refused": "the library itself declined",
    "approximate": "its results are not exact and the manifest asks for exact ones",
    "cannot_fuse": "it cannot take the epilogues of this operation",
    "cannot_handle": "it does not know something that this operation needs",
    "other_device": "it computes on another device than the backend",
    "declines": "it does not accept this problem",
    "wrong_result": "its result differs from the reference's",
    "failed": "it returned an error when tried",
}
"""Every code with its general meaning; a Reason's text describes one case."""


class Reason(Record):
    """A code of ``CODES``, the reason in this case, and the remedy."""

    code: str
    text: str = ""
    remedy: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the plugin is at fault, so that a warning is due."""
        return self.code in BROKEN

    def __str__(self) -> str:
        text = self.text or CODES.get(self.code, self.code)
        return f"{text}: {self.remedy}" if self.remedy else text


READY = Reason("ready")
DECLINES = Reason("declines")

NOBODY = "no plugin provides it"
"""The reason of errors about a name that no plugin lists."""

BROKEN = frozenset(
    {
        "invalid",
        "missing_file",
        "not_a_library",
        "missing_symbol",
        "crashed",
        "endless",
        "silent",
        "refused",
        "abi_mismatch",
        "api_mismatch",
        "wrong_result",
        "failed",
    }
)
"""Codes of faults of the plugin, which cause a warning; the others are circumstances."""


def unmet(cpu: Cpu, arch: str | None, features: Iterable[str]) -> Reason | None:
    """Return why ``cpu`` cannot run code for ``arch`` that needs ``features``; None if it can."""
    if arch is not None and arch != cpu.arch:
        return Reason("wrong_arch", f"made for {arch}, this is {cpu.arch}")
    missing = [name for name in features if name not in cpu.features]
    if not missing:
        return None
    if strange := [name for name in missing if name not in NEEDS]:
        names = printable(" and ".join(strange), 200)
        return Reason("missing_features", f"needs {names}, which this engine does not know", "update infeng-core")
    # Without avx512f, avx512bw is missing too: only the root feature is reported.
    roots = [name for name in missing if not (closure([name]) - {name}) & set(missing)]
    notes = [f"{name} ({cpu.masked[name]})" if name in cpu.masked else name for name in roots]
    allowed = "may not be used here" if all(name in cpu.masked for name in roots) else "is not in this processor"
    return Reason("missing_features", f"needs {' and '.join(notes)}, which {allowed}")


def abi_mismatch(abi: tuple[int, int] | None) -> Reason | None:
    """Return why a library built for kernel ABI ``abi`` can never be used here; None if it can, or has no ABI."""
    major = _native.ABI_VERSION[0]
    if abi is None or (abi[0] == major and abi[1] >= _native.ABI_SINCE):
        return None
    theirs, ours = (".".join(map(str, version)) for version in (abi, _native.ABI_VERSION))
    since = f" and loads what is built for {major}.{_native.ABI_SINCE} or later" if abi[0] == major else ""
    return Reason(
        "abi_mismatch", f"built for ABI {theirs}, this engine has {ours}{since}", "install a matching release"
    )
