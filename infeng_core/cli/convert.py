"""``infeng convert``: pack a model's weights once, ahead of time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from infeng_core.cli import say
from infeng_core.cli.options import add_config_options, config_from
from infeng_core.settings.config import SCHEMA, WEIGHT_FORMATS, default_of


class Convert:
    """``infeng convert SOURCE DEST``."""

    name = "convert"
    help = "pack a model's weights into an engine-native directory"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("source", metavar="SOURCE", help="Hugging Face directory or hub name")
        parser.add_argument("dest", metavar="DEST", type=Path, help="directory to write")
        names, default = ", ".join(WEIGHT_FORMATS), default_of(SCHEMA["model"]["format"])
        parser.add_argument("--format", metavar="F", help=f"{names} or a plugin's (default: {default})")
        parser.add_argument("--force", action="store_true", help="replace an engine-native directory at DEST")
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        from infeng_core.formats import choose, convert, find, use_families
        from infeng_core.machine.memory import gigabytes
        from infeng_core.plug.manager import Plugins

        config = config_from(arguments, model__format=arguments.format)
        plugins = Plugins.discover(config)
        use_families(plugins)
        lookup = plugins.quant_format
        choice = choose(config, lookup)
        made = convert(find(arguments.source, plugins), arguments.dest, choice, lookup=lookup, force=arguments.force)
        if arguments.json:
            print(json.dumps(vars(made) | {"path": str(made.path), "seconds": round(made.seconds, 3)}))
        elif made.reused:
            say(f"{made.path}: is there already, from the same source ({gigabytes(made.nbytes)})")
        else:
            say(f"{made.path}: {gigabytes(made.nbytes)} in {made.seconds:.1f} s")
        return 0
