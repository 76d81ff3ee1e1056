"""``infeng convert``: pack a model's weights once, ahead of time, or write them as GGUF for others."""

from __future__ import annotations

import argparse

from infeng_core.cli.options import add_conversion_options, config_from, say_converted
from infeng_core.errors import UsageError
from infeng_core.settings.config import SCHEMA, WEIGHT_FORMATS, default_of


class Convert:
    """``infeng convert SOURCE DEST``."""

    name = "convert"
    help = "pack a model's weights into an engine-native directory, or write them as GGUF"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("source", metavar="SOURCE", help="Hugging Face directory, GGUF file or hub name")
        names, default = ", ".join(WEIGHT_FORMATS), default_of(SCHEMA["model"]["format"])
        text = f"{names} or a plugin's (default: {default}; of a GGUF, what keeps its precision)"
        parser.add_argument("--format", metavar="F", help=f"{text}; to DEST.gguf: f16 (default), f32, bf16, q8_0, q4_0")
        parser.add_argument(
            "--quantizer", metavar="Q", help="what chooses codes and scales: nearest (default) or a plugin's"
        )
        parser.add_argument(
            "--calibrate",
            metavar="TEXT",
            help="text that the weights are fitted to: a file, auto (the model writes it) or none (default)",
        )
        add_conversion_options(parser, "directory")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        if arguments.dest.suffix == ".gguf":
            return self._export(arguments)
        return self._convert(arguments)

    def _export(self, arguments: argparse.Namespace) -> int:
        from infeng_core.formats import find, use_families
        from infeng_core.formats.gguf.export import export_gguf
        from infeng_core.plug.manager import Plugins

        for name in ("quantizer", "calibrate"):
            if getattr(arguments, name) not in (None, "none"):
                raise UsageError(f"--{name}", "has no say in what a GGUF stores", "leave it out")
        plugins = Plugins.discover(config_from(arguments))
        use_families(plugins)
        source = find(arguments.source, plugins)
        made = export_gguf(source, arguments.dest, arguments.format or "f16", force=arguments.force)
        say_converted(made, arguments, "", f" as {arguments.format or 'f16'}")
        return 0

    def _convert(self, arguments: argparse.Namespace) -> int:
        from infeng_core.calibration.start import calibrated
        from infeng_core.formats import choose, convert, find, use_families
        from infeng_core.formats.quantizers import described
        from infeng_core.plug.manager import Plugins

        name = arguments.quantizer or (None if arguments.calibrate in (None, "none") else "gptq")
        config = config_from(arguments, model__format=arguments.format, model__quantizer=name)
        plugins = Plugins.discover(config)
        use_families(plugins)
        lookup = plugins.quant_format
        choice, quantizer = choose(config, lookup), plugins.quantizer(config.model.quantizer)
        source = find(arguments.source, plugins)
        quantizer, statistics = calibrated(arguments.calibrate, source, quantizer, config, plugins)
        made = convert(
            source,
            arguments.dest,
            choice,
            lookup=lookup,
            quantizer=quantizer,
            statistics=statistics,
            force=arguments.force,
        )
        who = f", quantizer {described(made.quantizer)}"
        again = [f"; rounded again: {change} ({count})" for change, count in made.rounded_again.items()]
        say_converted(made, arguments, f"from the same source{who}", more=who + "".join(again))
        return 0
