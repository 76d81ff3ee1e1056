"""``infeng cache``: lists the disk space of converted models, adapters and prefixes, and removes entries."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.api import UsageError, add_config_options, config_from, say
from infeng_core.api.formats import gigabytes

if TYPE_CHECKING:
    from infeng_convert.cache_entries import Contents, Entry

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
KINDS = ("model", "adapter", "source", "prefix", "verdict", "leftover")


class Cache:
    """``infeng cache list|prune``."""

    name = "cache"
    help = "show the disk space of converted models, adapters and prefixes, or remove entries"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verbs and their arguments."""
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for name, help in (("list", "show every entry"), ("prune", "remove entries by age or size")):
            verb = verbs.add_parser(name, help=help, description=help)
            text = "only entries of this kind; repeats (default: all kinds)"
            verb.add_argument("--kind", action="append", choices=KINDS, help=text)
            verb.add_argument("--json", action="store_true", help="print one JSON object on stdout")
            add_config_options(verb)
        prune = verbs.choices["prune"]
        prune.add_argument(
            "--older-than", metavar="AGE", type=age, help="remove entries unused for this long: 90m, 12h, 30d or 8w"
        )
        prune.add_argument(
            "--max-size", metavar="SIZE", type=size, help="remove the least recently used until the rest fits: 20GB"
        )
        prune.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")

    def run(self, arguments: argparse.Namespace) -> int:
        """List or prune; the status is 1 if a selected entry could not be removed."""
        from infeng_convert.cache_entries import contents

        config = config_from(arguments)
        found = contents([Path(config.kv_cache.prefix_dir)] if config.kv_cache.prefix_dir else [])
        entries = [entry for entry in found.entries if arguments.kind is None or entry.kind in arguments.kind]
        if arguments.verb == "prune":
            return prune(entries, arguments)
        facts = {
            "path": str(found.root),
            "bytes": sum(entry.nbytes for entry in entries),
            "other_bytes": found.other_bytes,
            "entries": [as_json(entry) for entry in entries],
            "skipped": {str(path): why for path, why in found.skipped.items()},
        }
        print(json.dumps(facts, indent=2)) if arguments.json else say(*listing(found, entries))
        return 0


def prune(entries: list[Entry], arguments: argparse.Namespace) -> int:
    """Remove the entries that the options select, or list them; return the exit status."""
    from infeng_convert.cache_entries import chosen, remove

    if arguments.older_than is None and arguments.max_size is None:
        remedy = "give --older-than AGE, --max-size SIZE or both; --dry-run lists the selection"
        raise UsageError("cache prune", "no entries are selected", remedy)
    gone, stays = [], {}
    for entry in chosen(entries, older=arguments.older_than, most=arguments.max_size):
        if not arguments.dry_run and (why := remove(entry)):
            stays[entry] = why
        else:
            gone.append(entry)
    nbytes = sum(entry.nbytes for entry in gone)
    if arguments.json:
        facts = {
            "removed": [as_json(entry) for entry in gone],
            "bytes": nbytes,
            "failed": {str(entry.path): why for entry, why in stays.items()},
            "dry_run": arguments.dry_run,
        }
        print(json.dumps(facts, indent=2))
    else:
        say(*(f"{entry.path} stays: {why}" for entry, why in stays.items()), to_stderr=True)
        done = "would be removed" if arguments.dry_run else "removed"
        say(*map(line, gone), f"{len(gone)} {'entry' if len(gone) == 1 else 'entries'} {done}, {gigabytes(nbytes)}")
    return int(bool(stays))


def listing(found: Contents, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of ``cache list``: the entries, a sum for each kind, and unrecognized files."""
    from infeng_convert.cache_entries import KINDS as NAMES

    yield str(found.root)
    sums: dict[str, tuple[int, int]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.kind, -entry.used)):
        count, nbytes = sums.get(entry.kind, (0, 0))
        sums[entry.kind] = count + 1, nbytes + entry.nbytes
        yield f"  {line(entry)}"
    for kind, words in NAMES.items():
        if kind in sums:
            count, nbytes = sums[kind]
            yield f"{words:32} {gigabytes(nbytes):>10}  {count}"
    yield f"{'other files, never removed':32} {gigabytes(found.other_bytes):>10}"
    for path, why in found.skipped.items():
        yield f"{path} {why}"


def line(entry: Entry) -> str:
    """Return an entry as one line: kind, size, how long ago it was used, path."""
    return f"{entry.kind:9} {gigabytes(entry.nbytes):>10}  {ago(time.time() - entry.used):>6}  {entry.path}"


def as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as plain data; ``used``: seconds since 1970."""
    return {"kind": entry.kind, "path": str(entry.path), "bytes": entry.nbytes, "used": entry.used}


def ago(seconds: float) -> str:
    """Return a time span in its largest whole unit: 3d, 7h, 0m."""
    for unit in ("d", "h"):
        if seconds >= UNITS[unit]:
            return f"{seconds // UNITS[unit]:.0f}{unit}"
    return f"{max(0.0, seconds) // 60:.0f}m"


def age(text: str) -> float:
    """Return the seconds of an age such as 90m, 12h, 30d or 8w; raises ArgumentTypeError."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: write 90m, 12h, 30d or 8w")
    return float(found[1]) * UNITS[found[2]]


def size(text: str) -> int:
    """Return the bytes of a size such as 500MB or 20GB, 0 for all; raises ArgumentTypeError."""
    from infeng_core.api.servers import Size

    if text.strip() == "0":
        return 0
    try:
        return Size().parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
