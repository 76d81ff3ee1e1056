"""``infeng convert``: pack a model's weights once, ahead of time."""

from __future__ import annotations

import argparse

from infeng_core.cli.options import add_conversion_options, config_from, say_converted


class Convert:
    """``infeng convert SOURCE DEST``."""

    name = "convert"
    help = "pack a model's weights into an engine-native directory"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("source", metavar="SOURCE", help="Hugging Face directory or hub name")
        parser.add_argument(
            "--format", metavar="F", help="f32, bf16, int8-row, int4-g64 (default), int4-g32 or a plugin's"
        )
        parser.add_argument(
            "--quantizer", metavar="Q", help="what chooses codes and scales: nearest (default) or a plugin's"
        )
        add_conversion_options(parser, "directory")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        from infeng_core.formats import choose, convert, find, use_families
        from infeng_core.formats.quantizers import described
        from infeng_core.plug.manager import Plugins

        config = config_from(arguments, model__format=arguments.format, model__quantizer=arguments.quantizer)
        plugins = Plugins.discover(config)
        use_families(plugins)
        lookup = plugins.quant_format
        choice, quantizer = choose(config, lookup), plugins.quantizer(config.model.quantizer)
        source = find(arguments.source, plugins)
        made = convert(source, arguments.dest, choice, lookup=lookup, quantizer=quantizer, force=arguments.force)
        who = f", quantizer {described(made.quantizer)}"
        say_converted(made, arguments, f"from the same source{who}", more=who)
        return 0
