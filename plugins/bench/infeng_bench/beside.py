"""Other engines, and other implementations of ops, beside this engine: what a plugin gives for comparisons."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_bench.hookspecs import Peers, infeng_bench_peers
from infeng_bench.reports.results import OURS
from infeng_core.api import Plugins, UsageError, load_config, unknown_key_remedy


def find() -> Peers | None:
    """Return the peers that a plugin gives; None without one."""
    answers = Plugins.discover(load_config()).answers(infeng_bench_peers).values()
    return next((one for several in answers for one in several), None)


def peers() -> Peers:
    """Return the peers that a plugin gives; raises UsageError without one."""
    found = find()
    if found is None:
        raise UsageError("other engines", "no plugin brings them", "install the wheel infeng-peers")
    return found


def names() -> Sequence[str]:
    """Return the names of other engines."""
    found = find()
    return () if found is None else found.names


def engines(text: str, fewest: int = 1) -> list[str]:
    """Read at least ``fewest`` different names separated by commas; raises UsageError."""
    found, known = text.split(","), (OURS, *(() if text == OURS else peers().names))
    for name in found:
        if name not in known:
            raise UsageError(f"engine {name!r}", "unknown", unknown_key_remedy(name, known))
    if len(set(found)) != len(found) or len(found) < fewest:
        why = f"{text!r} does not name {'two ' if fewest > 1 else ''}different engines"
        raise UsageError("engines", why, f"give {OURS},llama_cpp")
    return found
