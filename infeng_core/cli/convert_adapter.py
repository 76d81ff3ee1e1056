"""``infeng convert-adapter``: pack an adapter once, ahead of time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from infeng_core.cli import say
from infeng_core.cli.options import add_config_options, config_from


class ConvertAdapter:
    """``infeng convert-adapter PEFT DEST --model MODEL``."""

    name = "convert-adapter"
    help = "pack a LoRA adapter into an engine-native directory"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("adapter", metavar="PEFT", help="directory that PEFT saved, or a hub name")
        parser.add_argument("dest", metavar="DEST", type=Path, help="directory to write")
        parser.add_argument("--model", required=True, help="the base: a model directory or a hub name")
        parser.add_argument("--format", metavar="F", help="the base's format, which DoRA's norms follow")
        parser.add_argument("--dtype", choices=("int8", "bf16", "f32"), help="storage, else adapters.dtype")
        parser.add_argument("--force", action="store_true", help="replace an engine-native adapter at DEST")
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        from infeng_core.formats import convert_adapter, load
        from infeng_core.machine.memory import gigabytes
        from infeng_core.plug.manager import Plugins

        config = config_from(arguments, model__format=arguments.format)
        model = load(arguments.model, config, Plugins.discover(config))
        dtype = arguments.dtype or config.adapters.dtype
        made = convert_adapter(arguments.adapter, arguments.dest, model, dtype, force=arguments.force)
        if arguments.json:
            print(json.dumps(vars(made) | {"path": str(made.path), "seconds": round(made.seconds, 3)}))
        elif made.reused:
            say(f"{made.path}: is there already, with the same contents ({gigabytes(made.nbytes)})")
        else:
            fits = "this base alone" if made.bound else "every base of these shapes"
            say(f"{made.path}: {gigabytes(made.nbytes)} as {made.dtype} in {made.seconds:.1f} s; fits {fits}")
        return 0
