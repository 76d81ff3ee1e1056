"""``infeng unpack``: writes the base and the adapters of a checkpoint that holds both."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from infeng_core.api import say
from infeng_core.api.formats import gigabytes


class Unpack:
    """``infeng unpack CHECKPOINT DEST``."""

    name = "unpack"
    help = "write the base and the adapters of a checkpoint that holds both (Granite Switch)"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="directory of a Granite Switch model")
        parser.add_argument("dest", metavar="DEST", type=Path, help="new directory to write")
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write both; what to run goes to stdout."""
        from infeng_convert.switch.unpacking import unpack

        made = unpack(arguments.checkpoint, arguments.dest)
        if arguments.json:
            adapters = {name: str(path) for name, path in made.adapters.items()}
            print(json.dumps({"base": str(made.base), "adapters": adapters, "nbytes": made.nbytes}))
            return 0
        say(f"{made.path}: {gigabytes(made.nbytes)}, a base and {len(made.adapters)} activated adapters")
        for name, path in made.adapters.items():
            print(f"--lora {name}={path}")
        return 0
