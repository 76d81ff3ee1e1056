"""`infeng bench peers`: install, list and remove other engines."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from infeng_peers.environment import Environment
from infeng_peers.known import NAMES, PARTS, peer

NAME = "peers"

WIDTH = 2 + max(map(len, (*NAMES, *PARTS)))  # of the column of names


def configure(parser: argparse.ArgumentParser) -> None:
    """Add install, list and remove."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser("install", help="build environments under the user's cache")
    install.add_argument("names", nargs="+", metavar="PEER", help=f"of {', '.join((*NAMES, *PARTS))}")
    install.add_argument("--force", action="store_true", help="build it anew even if it is there")
    remove = actions.add_parser("remove", help="delete environments")
    remove.add_argument("names", nargs="+", metavar="PEER")
    listing = actions.add_parser("list", help="show which are installed, their versions and flags")
    listing.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> int:
    """Do the action; raises UsageError for an unknown peer, PeerError if an installation fails."""
    if arguments.action == "list":
        return _list(arguments.json)
    environments = [Environment(peer(name)) for name in arguments.names]
    for environment in environments:
        name = environment.peer.NAME
        if arguments.action == "remove":
            print(f"{name}: {'removed' if environment.remove() else 'was not installed'}")
            continue
        begin = time.monotonic()
        print(f"{name}: {environment.peer.ABOUT}; log: {environment.log}", file=sys.stderr)
        record = environment.install(force=arguments.force)
        print(f"{name}: {_versions(record)} ({time.monotonic() - begin:.0f} s)")
    return 0


def _list(as_json: bool) -> int:
    found: list[dict[str, Any]] = []
    for name in (*NAMES, *PARTS):
        environment = Environment(peer(name))
        found.append(
            {
                "name": name,
                "about": environment.peer.ABOUT,
                "missing": environment.missing(),
                "folder": str(environment.folder),
                "log": str(environment.log),
                **(environment.record() or {}),
            }
        )
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    for entry in found:
        if entry["missing"]:
            print(f"{entry['name']:{WIDTH}}{entry['missing']}: infeng bench peers install {entry['name']}")
        else:
            flags = ", ".join(f"{key}={value}" for key, value in entry["flags"].items())
            print(f"{entry['name']:{WIDTH}}{_versions(entry)}")
            print(f"{'':{WIDTH}}{flags or 'no flags'}; Python {entry['python']}; {entry['folder']}")
    return 0


def _versions(record: dict[str, Any]) -> str:
    """Return the installed versions of the peer's requirements."""
    wanted = [requirement.partition("=")[0].partition(">")[0] for requirement in record["requirements"]]
    installed = {name.lower().replace("_", "-"): version for name, version in record["versions"].items()}
    return ", ".join(f"{name} {installed.get(name.lower(), '?')}" for name in wanted)
