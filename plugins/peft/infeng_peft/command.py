"""``infeng convert-adapter``: pack an adapter once, ahead of time."""

from __future__ import annotations

import argparse

from infeng_convert.api import add_conversion_options, say_converted

from infeng_core.api import config_from


class ConvertAdapter:
    """``infeng convert-adapter PEFT DEST --model MODEL``."""

    name = "convert-adapter"
    help = "pack a LoRA adapter into an engine-native directory"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        help = "directory that PEFT saved, a file that a plugin reads, or a hub name"
        parser.add_argument("adapter", metavar="PEFT", help=help)
        parser.add_argument("--model", required=True, help="the base: a model directory or a hub name")
        parser.add_argument("--format", metavar="F", help="the base's format, which DoRA's norms follow")
        storages = ("int8", "int8t4", "bf16", "f32")
        parser.add_argument("--dtype", choices=storages, help="storage (default: adapters.dtype, int8)")
        add_conversion_options(parser, "adapter")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        from infeng_core.api import Plugins
        from infeng_core.api.adapters import load_model
        from infeng_peft.conversion import convert_adapter

        config = config_from(arguments, model__format=arguments.format)
        plugins = Plugins.discover(config)
        model = load_model(arguments.model, config, plugins)
        dtype = arguments.dtype or config.adapters.dtype
        force = arguments.force
        made = convert_adapter(arguments.adapter, arguments.dest, model, dtype, force=force, providers=plugins)
        fits = "this base alone" if made.bound else "every base of these shapes"
        say_converted(made, arguments, "with the same contents", f" as {made.dtype}", f"; fits {fits}")
        return 0
