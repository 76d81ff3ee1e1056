"""`infeng doctor`: what this machine offers, which plugins are used and why, where every setting comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infeng_core.cli.options import add_config_options, config_from
from infeng_core.plug import explain
from infeng_core.plug.manager import Plugins


class Doctor:
    """The command."""

    name = "doctor"
    help = "what this machine offers, which plugins are used and why, where every setting comes from"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_config_options(parser)
        parser.add_argument("--json", action="store_true", help="for machines")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report."""
        facts = explain.doctor(Plugins.discover(config_from(arguments)))
        print(json.dumps(facts, indent=2) if arguments.json else "\n".join(report(facts)))
        return 0


def report(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for people."""
    machine = facts["machine"]
    memory, pages, cache = machine["memory"], machine["huge_pages"], facts["cache"]
    yield f"infeng {facts['version']}, kernel ABI {facts['abi']}, Python {facts['python']}, {machine['system']}"
    yield ""
    yield f"processor   {machine['model']} ({machine['arch']})"
    quota = f", limited to {machine['quota']:g} cores' worth of time" if machine["quota"] else ""
    nodes = f", {machine['numa_nodes']} NUMA nodes" if (machine["numa_nodes"] or 1) > 1 else ""
    yield f"cores       {machine['cores']}{quota}{nodes}"
    yield f"caches      {', '.join(f'{name} {size(value)}' for name, value in machine['caches'].items())}"
    yield f"features    {' '.join(machine['features'])}"
    for name, why in machine["masked"].items():
        yield f"  masked    {name}: {why}"
    limit = f", limit {size(memory['limit'])}" if "limit" in memory else ""
    if "total" in memory:
        yield f"memory      {size(memory['total'])}, {size(memory.get('available', 0))} available{limit}"
    yield f"huge pages  {_huge_pages(pages)}"
    yield f"cache       {cache['path']} ({size(cache['bytes'])}{'' if cache['writable'] else ', NOT writable'})"
    yield ""
    yield "plugins"
    yield from table([(p["name"], p["version"] or "-", p["state"], p["reason"], p["origin"]) for p in facts["plugins"]])
    yield ""
    yield "kernel libraries, in the manifest's order"
    yield from table(
        [
            (lib["name"], f"{lib['kernels']} kernels", lib["state"], lib["reason"], (lib["sha256"] or "-")[:16])
            for lib in facts["libraries"]
        ]
    )
    yield ""
    yield "settings"
    yield from table([(name, show(item["value"]), item["from"]) for name, item in facts["settings"].items()])


def _huge_pages(pages: Mapping[str, Any]) -> str:
    state = pages.get("transparent")
    if state is None:
        return "unknown"
    advice = ": weights get none; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return f"transparent {state}{advice if state == 'never' else ''}, defrag {pages.get('defrag', 'unknown')}"


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with their columns aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def show(value: object) -> str:
    """Return a setting's value on one line."""
    return value if isinstance(value, str) else json.dumps(value)


def size(nbytes: int) -> str:
    """Return bytes in the unit that people read: 1.5 GiB."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if amount >= 10 or units[0] == "B" else f"{amount:.1f} {units[0]}"
