"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from infeng_core.cli import say
from infeng_core.machine.memory import gigabytes
from infeng_core.plug.assembly import load_config
from infeng_core.settings.config import EngineConfig
from infeng_core.settings.manifest import parse_assignment


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--manifest``, ``--set`` and ``--strict``."""
    group = parser.add_argument_group("assembly")
    group.add_argument("--manifest", metavar="FILE", help="engine manifest: a YAML file or the name of a shipped one")
    group.add_argument(
        "--set",
        metavar="KEY.SUB=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="override one setting; repeats",
    )
    group.add_argument("--strict", action="store_true", help="a plugin that fails is an error, not a warning")


def add_conversion_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the destination of a conversion to an engine-native ``what``, and the options of every command."""
    parser.add_argument("dest", metavar="DEST", type=Path, help="directory to write")
    parser.add_argument("--force", action="store_true", help=f"replace an engine-native {what} at DEST")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    add_config_options(parser)


def say_converted(made: Any, arguments: argparse.Namespace, same: str, stored: str = "", more: str = "") -> None:
    """Print the result of a conversion. same: the equal property, if the result existed already."""
    if arguments.json:
        print(json.dumps(vars(made) | {"path": str(made.path), "seconds": round(made.seconds, 3)}))
    elif made.reused:
        say(f"{made.path}: is there already, {same} ({gigabytes(made.nbytes)})")
    else:
        say(f"{made.path}: {gigabytes(made.nbytes)}{stored} in {made.seconds:.1f} s{more}")


def config_from(arguments: argparse.Namespace, **more: object) -> EngineConfig:
    """Return the configuration for the options; ``more``: ``section__key=value``, None meaning not given."""
    overrides: dict[str, object] = {key.replace("__", "."): value for key, value in more.items() if value is not None}
    overrides |= dict(parse_assignment(text) for text in arguments.assignments)
    if arguments.strict:
        overrides["kernels.strict"] = True
    return load_config(Path(arguments.manifest) if arguments.manifest else None, overrides=overrides)
