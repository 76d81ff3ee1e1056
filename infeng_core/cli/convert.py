"""``infeng convert``: pack a model's weights once, ahead of time, or write them as GGUF for others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from infeng_core.cli import say
from infeng_core.cli.options import add_conversion_options, config_from, say_converted
from infeng_core.errors import UsageError
from infeng_core.machine.memory import gigabytes
from infeng_core.settings.config import SCHEMA, WEIGHT_FORMATS, EngineConfig, default_of

if TYPE_CHECKING:
    from infeng_core.calibration.start import Sample
    from infeng_core.formats.forecast import Forecast
    from infeng_core.formats.quantizers import QuantizerChoice
    from infeng_core.formats.recipes import Recipe
    from infeng_core.plug.manager import Plugins

QUALITIES = ("small", "balanced", "faithful", "int8")


class _Activations(TypedDict):
    group: int | None
    is_rotated: bool | None


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
        help = "instead of a format: int4 throughout; at most 5.25 bits; 6 and 8 bits; 8 bits"
        parser.add_argument("--quality", choices=QUALITIES, help=help)
        parser.add_argument(
            "--budget", type=float, metavar="BITS", help="of a weight in the layers, on average (balanced, faithful)"
        )
        parser.add_argument(
            "--recipe", type=Path, metavar="FILE", help="convert as the recipe.yaml of a conversion says"
        )
        parser.add_argument(
            "--quantizer", metavar="Q", help="what chooses codes and scales: nearest (default) or a plugin's"
        )
        parser.add_argument(
            "--calibrate",
            metavar="TEXT",
            help="text that the weights are fitted to: a file, auto (the model writes it; the default with --quality, "
            "except int8) or none",
        )
        help = "inputs of a linear that share a scale when they are rounded to int8 (p32 formats; default: 64)"
        parser.add_argument("--act-group", type=int, choices=(64, 128, 256), help=help)
        help = (
            "turn each 64 inputs of a linear by a Hadamard matrix before they are rounded (p32 formats; default: none)"
        )
        parser.add_argument("--rotate", choices=("none", "h64"), help=help)
        parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
        add_conversion_options(parser, "directory")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout."""
        if arguments.dest.suffix == ".gguf":
            return self._export(arguments)
        return self._convert(arguments)

    def _export(self, arguments: argparse.Namespace) -> int:
        from infeng_core.formats import find, use_families
        from infeng_core.formats.gguf.export import export_gguf, planned
        from infeng_core.plug.manager import Plugins

        for name in ("quantizer", "calibrate", "quality", "budget", "recipe", "act_group", "rotate"):
            if getattr(arguments, name) not in (None, "none"):
                raise UsageError(f"--{name.replace('_', '-')}", "has no say in what a GGUF stores", "leave it out")
        plugins = Plugins.discover(config_from(arguments))
        use_families(plugins)
        source = find(arguments.source, plugins)
        format = arguments.format or "f16"
        if arguments.dry_run:
            types, nbytes = planned(source, format)
            _say_planned(arguments, types, nbytes, {"nbytes": nbytes}, "")
            return 0
        made = export_gguf(source, arguments.dest, format, force=arguments.force)
        say_converted(made, arguments, "", f" as {format}")
        return 0

    def _convert(self, arguments: argparse.Namespace) -> int:
        from infeng_core.calibration.start import calibrated, sample
        from infeng_core.formats import choose, convert, find, use_families
        from infeng_core.formats.forecast import forecast
        from infeng_core.formats.quantizers import described
        from infeng_core.plug.manager import Plugins

        given = _given(arguments)
        text = _text(arguments, given)
        name = given.quantizer if given else arguments.quantizer or (None if text in (None, "none") else "gptq")
        config = config_from(arguments, model__format=arguments.format, model__quantizer=name)
        _require_one_choice(arguments, config)
        plugins = Plugins.discover(config)
        use_families(plugins)
        lookup, quantizer = plugins.quant_format, plugins.quantizer(config.model.quantizer)
        source = find(arguments.source, plugins)
        found = sample(text, source, config, plugins)
        quantizer, statistics = calibrated(quantizer, found, config, plugins)
        recipe = given
        if given is not None:
            _require_text(given, found, arguments)
        elif arguments.quality:
            recipe = _recipe(arguments, found, source, config, plugins, quantizer)
        choice, written = (recipe.choice, recipe.written()) if recipe else (choose(config, lookup), b"")
        if recipe is None:
            choice = choice.over(**_activations(arguments), lookup=lookup)
        if arguments.dry_run:
            _say_forecast(arguments, forecast(source, choice, lookup, quantizer, is_calibrated=statistics is not None))
            return 0
        made = convert(
            source,
            arguments.dest,
            choice,
            lookup=lookup,
            quantizer=quantizer,
            statistics=statistics,
            recipe=written,
            force=arguments.force,
            progress="lines",
        )
        who = f", quantizer {described(made.quantizer)}"
        again = [f"; rounded again: {change} ({count})" for change, count in made.rounded_again.items()]
        again += _few_rows(made.few_rows)
        say_converted(made, arguments, f"from the same source{who}", more=who + "".join(again))
        return 0


def _few_rows(made: Mapping[str, int]) -> list[str]:
    """Return what is said of experts that hardly a row of the calibration text went to: their number by tensor."""
    count = sum(few for name, few in made.items() if name.endswith("gate_up_proj"))
    how = "gate and up are fitted to their layer's rows, down is rounded to nearest"
    return [f"; the text hardly reaches {count} expert{'s' if count > 1 else ''}: {how}"] if count else []


def _given(arguments: argparse.Namespace) -> Recipe | None:
    """Return the recipe that was given; raises UsageError for options that contradict one another."""
    from infeng_core.calibration.profiles import PROFILES, budget_of
    from infeng_core.formats import recipes

    decided = ("quality", "budget", "format", "quantizer", "act_group", "rotate")
    for one, others in (("recipe", decided), ("quality", ("format",))):
        for other in others:
            if getattr(arguments, one) is not None and getattr(arguments, other) is not None:
                option = f"--{other.replace('_', '-')}"
                raise UsageError(option, f"--{one} decides it", f"leave one of --{one} and {option} out")
    if arguments.budget is not None and arguments.quality is None:
        raise UsageError("--budget", "it is for a profile to spend", "add --quality balanced or faithful")
    if arguments.budget is not None and not 1 <= arguments.budget <= 32:
        raise UsageError(f"--budget {arguments.budget:g}", "is no number of bits", "give 4.5 to 8")
    if arguments.quality is not None:
        budget_of(PROFILES[arguments.quality], arguments.budget)
    return None if arguments.recipe is None else recipes.read(arguments.recipe)


def _activations(arguments: argparse.Namespace) -> _Activations:
    """Return how the linears of p32 formats read their inputs; None where nothing was said."""
    return {"group": arguments.act_group, "is_rotated": None if arguments.rotate is None else arguments.rotate == "h64"}


def _text(arguments: argparse.Namespace, given: Recipe | None) -> str | None:
    """Return what to calibrate on; raises UsageError where a recipe's text is not at hand."""
    from infeng_core.calibration.profiles import PROFILES

    if given is None:
        default = PROFILES[arguments.quality].calibrate if arguments.quality else None
        return arguments.calibrate or default
    if given.text is None or given.text.source == "auto" or arguments.calibrate:
        return arguments.calibrate or (None if given.text is None else "auto")
    remedy = "give that file with --calibrate"
    raise UsageError(f"--recipe {arguments.recipe}", "its text is a file, which a recipe does not hold", remedy)


def _require_text(given: Recipe, found: Sample | None, arguments: argparse.Namespace) -> None:
    """Raise UsageError where the text is not that of the recipe."""
    text = None if found is None else found.text
    if text != given.text:
        has, wants = (
            "none" if one is None else f"{one.tokens} tokens, {one.sha256[:12]}" for one in (text, given.text)
        )
        why = f"its calibration text is {wants}, not {has}"
        raise UsageError(f"--recipe {arguments.recipe}", why, "give the text and the model that it was made with")


def _require_one_choice(arguments: argparse.Namespace, config: EngineConfig) -> None:
    """Raise UsageError where single formats were asked for beside a recipe or a profile."""
    one = "recipe" if arguments.recipe else "quality"
    asked = [
        key
        for key, origin in config.provenance.items()
        if key.split(".")[:2] in (["model", "formats"], ["model", "format"]) and origin == "argument"
    ]
    if asked and getattr(arguments, one) is not None:
        raise UsageError(
            asked[0], f"--{one} decides it", "change the formats in a recipe.yaml, and give that (--recipe)"
        )


def _recipe(
    arguments: argparse.Namespace,
    found: Sample | None,
    source: Path,
    config: EngineConfig,
    plugins: Plugins,
    quantizer: QuantizerChoice,
) -> Recipe:
    """Return a profile's recipe: that of a conversion of the same question, finished or interrupted, or a new one."""
    from infeng_core.calibration.profiles import PROFILES, budget_of
    from infeng_core.calibration.recipe import make
    from infeng_core.formats.conversion import known_recipe, require_free
    from infeng_core.formats.identity import conversion_key

    profile = PROFILES[arguments.quality].over(**_activations(arguments))

    def key(recipe: Recipe) -> str:
        return conversion_key(source, recipe.choice, quantizer, recipe.written())

    known = known_recipe(arguments.dest, plugins.quant_format, key)
    question = (profile.name, budget_of(profile, arguments.budget), None if found is None else found.text)
    is_same = known is not None and profile.made(known.formats.values())
    if known is not None and is_same and (known.profile, known.budget, known.text) == question:
        return known
    if not arguments.dry_run:
        require_free(arguments.dest, arguments.force)  # before the work
    return make(profile, arguments.budget, found, source, config, plugins, "lines")


def _say_forecast(arguments: argparse.Namespace, made: Forecast) -> None:
    from infeng_core.telemetry.process import footprint

    own = footprint()
    process = 0 if own is None else own.total  # what a conversion has beside the model: this process, as it is
    more = f", {made.bits_per_weight:.2f} bits a weight"
    more += f"; converting takes about {gigabytes(made.convert_bytes + process)} of memory"
    more += "".join(f"; rounded again: {change} ({count})" for change, count in made.rounded_again.items())
    _say_planned(arguments, dict(made.formats), made.nbytes, vars(made) | {"process_bytes": process}, more)


def _say_planned(
    arguments: argparse.Namespace, formats: dict[str, str], nbytes: int, facts: dict[str, object], more: str
) -> None:
    """Print what a dry run found."""
    from infeng_core.formats import by_format

    if arguments.json:
        print(json.dumps(facts | {"path": str(arguments.dest), "formats": formats, "dry_run": True}))
        return
    say(f"{arguments.dest}: would be {gigabytes(nbytes)}{more}; nothing was written")
    say(*(f"  {format:10} {', '.join(names)}" for format, names in by_format(formats).items()))
