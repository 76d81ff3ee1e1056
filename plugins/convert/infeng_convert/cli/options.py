"""The options and the report of commands that write an engine-native directory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from infeng_core.api import add_config_options, say
from infeng_core.api.formats import gigabytes


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
