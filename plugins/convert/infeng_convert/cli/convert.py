"""``infeng convert``: packs a model's weights ahead of time, or writes them in another engine's file format."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_convert.cli.options import add_conversion_options, say_converted
from infeng_core.api import UsageError, config_from, say
from infeng_core.api.formats import SCHEMA, WEIGHT_FORMATS, default_of, gigabytes

if TYPE_CHECKING:
    from infeng_convert.forecast import Forecast
    from infeng_convert.interfaces.writers import ModelWriter
    from infeng_core.api import Plugins

QUALITIES = ("small", "balanced", "faithful", "int8")


class Convert:
    """``infeng convert SOURCE DEST``."""

    name = "convert"
    help = "pack a model's weights into an engine-native directory, or write them for other engines"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        help = "Hugging Face directory, file that a plugin reads or hub name"
        parser.add_argument("source", metavar="SOURCE", help=help)
        names, default = ", ".join(WEIGHT_FORMATS), default_of(SCHEMA["model"]["format"])
        text = f"{names} or a plugin's (default: {default}; quantized models keep their precision)"
        parser.add_argument("--format", metavar="F", help=f"{text}; or one of the plugin that writes DEST")
        help = "instead of a format: int4 throughout; at most 5.25 bits; 6 and 8 bits; 8 bits"
        parser.add_argument("--quality", choices=QUALITIES, help=help)
        parser.add_argument(
            "--budget", type=float, metavar="BITS", help="of a weight in the layers, on average (balanced, faithful)"
        )
        parser.add_argument(
            "--recipe", type=Path, metavar="FILE", help="convert as the recipe.yaml of a conversion says"
        )
        parser.add_argument(
            "--quantizer", metavar="Q", help="chooses codes and scales: nearest (default) or a plugin's"
        )
        parser.add_argument(
            "--calibrate",
            metavar="TEXT",
            help="text to which the weights are fitted: a file, auto (the model writes it; the default with --quality, "
            "except int8) or none",
        )
        help = (
            "inputs of a linear that share a scale in int8: 64, 128 or 256 (p32 formats), or row: all of them, rotated "
            "in blocks of up to 256 (p32 formats and int8-row); default: row with --quality, else the format's own"
        )
        parser.add_argument("--act-group", choices=("64", "128", "256", "row"), help=help)
        help = "rotate each 64 inputs of a linear by a Hadamard matrix before rounding (p32 formats; default: none)"
        parser.add_argument("--rotate", choices=("none", "h64"), help=help)
        parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
        add_conversion_options(parser, "directory")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        from infeng_convert.interfaces.hooks import MODEL_WRITERS
        from infeng_core.api import Plugins

        plugins = Plugins.discover(config_from(arguments))
        writer = next((writer for _, writer in plugins.each(MODEL_WRITERS) if writer.writes(arguments.dest)), None)
        if writer is not None:
            return self._export(arguments, writer, plugins)
        if wheel := plugins.missing_wheel(str(arguments.dest)):
            raise UsageError(f"{arguments.dest}", "nothing that is installed writes such a file", wheel)
        return self._convert(arguments)

    def _export(self, arguments: argparse.Namespace, writer: ModelWriter, plugins: Plugins) -> int:
        from infeng_convert.packed_model import open_source
        from infeng_convert.providers import reader_of
        from infeng_convert.sources import find
        from infeng_core.api.formats import use_families

        for name in ("quantizer", "calibrate", "quality", "budget", "recipe", "act_group", "rotate"):
            if getattr(arguments, name) not in (None, "none"):
                raise UsageError(f"--{name.replace('_', '-')}", "has no say in what such a file stores", "leave it out")
        use_families(plugins)
        found = find(arguments.source, plugins)
        source = open_source(found, partial(reader_of, providers=plugins))
        format = arguments.format or writer.default
        if arguments.dry_run:
            planned = writer.plan(source, format)
            _say_planned(arguments, planned.formats, planned.nbytes, {"nbytes": planned.nbytes}, "")
            return 0
        made = writer.write(source, arguments.dest, format, force=arguments.force, progress=True)
        say_converted(made, arguments, "", f" as {format}")
        return 0

    def _convert(self, arguments: argparse.Namespace) -> int:
        from infeng_convert.cli.conversion import Asked
        from infeng_convert.conversion import convert_to
        from infeng_convert.forecast import forecast
        from infeng_convert.quantizers import described
        from infeng_core.api import Plugins

        asked = Asked.of(arguments)
        config = config_from(arguments, model__format=arguments.format, model__quantizer=asked.quantizer)
        asked.require_only_choice(config)
        asked.require_reader(config)
        source, spec = asked.resolved(config, Plugins.discover(config))
        if arguments.dry_run:
            _say_forecast(arguments, forecast(spec, source))
            return 0
        made = convert_to(spec, source, arguments.dest, force=arguments.force, progress="lines")
        who = f", quantizer {described(made.quantizer)}"
        again = [f"; rounded again: {change} ({count})" for change, count in made.rounded_again.items()]
        again += _few_rows(made.few_rows)
        say_converted(made, arguments, f"from the same source{who}", more=who + "".join(again))
        return 0


def _few_rows(made: Mapping[str, int]) -> list[str]:
    """Return a note on experts that almost no row of the calibration text reached."""
    count = sum(few for name, few in made.items() if name.endswith("gate_up_proj"))
    how = "gate and up are fitted to their layer's rows, down is rounded to nearest"
    return [f"; the text hardly reaches {count} expert{'s' if count > 1 else ''}: {how}"] if count else []


def _say_forecast(arguments: argparse.Namespace, made: Forecast) -> None:
    from infeng_inspect.api import footprint

    own = footprint()
    process = 0 if own is None else own.total  # memory besides the model's: this process as it is
    more = f", {made.bits_per_weight:.2f} bits a weight"
    more += f"; converting takes about {gigabytes(made.convert_bytes + process)} of memory"
    more += "".join(f"; rounded again: {change} ({count})" for change, count in made.rounded_again.items())
    _say_planned(arguments, dict(made.formats), made.nbytes, vars(made) | {"process_bytes": process}, more)


def _say_planned(
    arguments: argparse.Namespace, formats: Mapping[str, str], nbytes: int, facts: dict[str, object], more: str
) -> None:
    """Print the result of a dry run."""
    from infeng_inspect.api import by_format

    if arguments.json:
        print(json.dumps(facts | {"path": str(arguments.dest), "formats": formats, "dry_run": True}))
        return
    say(f"{arguments.dest}: would be {gigabytes(nbytes)}{more}; nothing was written")
    say(*(f"  {format:10} {', '.join(names)}" for format, names in by_format(formats).items()))
