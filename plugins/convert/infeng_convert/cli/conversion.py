"""The options of ``infeng convert``: checked against one another, then resolved to a source and a spec."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from infeng_convert import recipes
from infeng_convert.activations import choice_over
from infeng_convert.calibration import measured_losses, resized_to
from infeng_convert.conversion import known_recipe, require_free, require_original, require_place
from infeng_convert.interfaces.calibrators import Calibrator, Text
from infeng_convert.interfaces.hooks import CALIBRATORS
from infeng_convert.profiles import PROFILES, Profile, budget_of, recipe_of
from infeng_convert.providers import reader_of
from infeng_convert.quantizers import DEFAULT, quantizer_of
from infeng_convert.recipes import Recipe
from infeng_convert.sources import find
from infeng_convert.spec import ConversionSpec
from infeng_core.api import EngineConfig, PluginError, Plugins, UsageError
from infeng_core.api.formats import ROW, FormatChoice, choose, format_lookup, reading, use_families

CALIBRATOR = "text"


@dataclass(frozen=True)
class Asked:
    """The checked options. None means not given."""

    source: str
    destination: Path
    recipe: Recipe | None
    recipe_path: Path | None
    profile: Profile | None  # with the requested budget and activations
    text: str | None  # to calibrate on: a file, "auto" or "none"
    quantizer: str | None
    group: int | None  # of a linear's inputs
    is_rotated: bool | None
    is_dry: bool  # nothing is written
    has_to_be_free: bool  # the destination must not exist

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Asked:
        """Check the options; raises UsageError for contradictory ones, and for a bad recipe."""
        _require_no_contradiction(arguments)
        group = _group_of(arguments.act_group)
        is_rotated = None if arguments.rotate is None else arguments.rotate == "h64"
        profile = None
        if arguments.quality is not None:
            budget = budget_of(PROFILES[arguments.quality], arguments.budget)
            profile = replace(PROFILES[arguments.quality], budget=budget)
            is_plain = group is None and is_rotated is None
            profile = profile.over(ROW if is_plain else group, is_rotated=is_rotated)
        recipe = None if arguments.recipe is None else recipes.read(arguments.recipe)
        text = None if profile is None else profile.calibrate
        if arguments.calibrate is not None:
            text = str(arguments.calibrate)
        if recipe is not None:
            text = _text_of(recipe, arguments)
        quantizer = arguments.quantizer or (None if text in (None, "none") else "gptq")
        return cls(
            arguments.source,
            arguments.dest,
            recipe,
            arguments.recipe,
            profile,
            text,
            quantizer if recipe is None else recipe.quantizer,
            group,
            is_rotated,
            arguments.dry_run,
            has_to_be_free=not (arguments.dry_run or arguments.force),
        )

    def require_only_choice(self, config: EngineConfig) -> None:
        """Raise UsageError if single formats were given beside a recipe or a profile."""
        asked = [
            key
            for key, origin in config.provenance.items()
            if key.split(".")[:2] in (["model", "formats"], ["model", "format"]) and origin == "argument"
        ]
        if asked and (self.recipe is not None or self.profile is not None):
            option = "--quality" if self.recipe is None else "--recipe"
            remedy = "change the formats in a recipe.yaml, and give that (--recipe)"
            raise UsageError(asked[0], f"{option} decides it", remedy)

    def require_reader(self, config: EngineConfig) -> None:
        """Raise UsageError for text that the quantizer would not use."""
        if self.text not in (None, "none") and config.model.quantizer == DEFAULT.name:
            why = f"the quantizer {DEFAULT.name} looks at no text"
            raise UsageError(f"--calibrate {self.text}", why, "leave --quantizer out, or give --calibrate none")

    def resolved(self, config: EngineConfig, plugins: Plugins) -> tuple[Path, ConversionSpec]:
        """Return the source and the spec of its conversion: reads or generates text, and measures losses of formats.

        Raises UsageError for a text that is not the recipe's, and the errors of reading and running the model.
        """
        use_families(plugins)
        calibrator = self._calibrator(config, plugins)
        quantizer, lookup = quantizer_of(config.model.quantizer, plugins), format_lookup(plugins)
        source = find(self.source, plugins)
        require_original(source)
        if not self.is_dry:
            require_place(self.destination)  # checked first: generating text takes a while
        sample = text = statistics = None
        if calibrator is not None:
            sample = calibrator.sample(str(self.text), source)
            statistics = calibrator.statistics(sample, aims=bool(getattr(quantizer.quantizer, "aims", False)))
            text = sample.text
            quantizer = resized_to(text, quantizer)

        def spec(choice: FormatChoice, recipe: Recipe | None = None) -> ConversionSpec:
            return ConversionSpec(choice, lookup, quantizer, statistics, recipe, partial(reader_of, providers=plugins))

        if self.recipe is not None:
            self._require_text(self.recipe, text)
            return source, spec(self.recipe.choice, self.recipe)
        if self.profile is None:
            return source, spec(
                choice_over(choose(config, lookup), self.group, is_rotated=self.is_rotated, lookup=lookup)
            )
        known = known_recipe(self.destination, lookup, lambda recipe: spec(recipe.choice, recipe).key(source))
        if known is None or not _answers(known, self.profile, text):
            if self.has_to_be_free:
                require_free(self.destination, force=False)  # checked before the work
            with reading(source):
                checkpoint = reader_of(source, plugins).open(source)
            measured = None
            if calibrator is not None and sample is not None:
                measured = partial(measured_losses, calibrator, sample, checkpoint, self.profile.ladder)
            known = recipe_of(self.profile, checkpoint.layout, config.model.quantizer, lookup, text, measured)
        return source, spec(known.choice, known)

    def _calibrator(self, config: EngineConfig, plugins: Plugins) -> Calibrator | None:
        """Return the calibrator for the requested text; None without text. Raises UsageError if no plugin provides
        one."""
        if self.text in (None, "none"):
            return None
        try:
            made: Calibrator = plugins.get(CALIBRATORS, CALIBRATOR)(config, plugins)
            return made
        except PluginError as error:
            remedy = f"{error.remedy}, or give --calibrate none"
            raise UsageError(f"--calibrate {self.text}", f"{error.what}: {error.why}", remedy) from error

    def _require_text(self, recipe: Recipe, text: Text | None) -> None:
        if text != recipe.text:
            has, wants = (
                "none" if one is None else f"{one.tokens} tokens, {one.sha256[:12]}" for one in (text, recipe.text)
            )
            why = f"its calibration text is {wants}, not {has}"
            raise UsageError(f"--recipe {self.recipe_path}", why, "give the text and the model that it was made with")


def _require_no_contradiction(arguments: argparse.Namespace) -> None:
    decided = ("quality", "budget", "format", "quantizer", "act_group", "rotate")
    for one, others in (("recipe", decided), ("quality", ("format",))):
        for other in others:
            if getattr(arguments, one) is not None and getattr(arguments, other) is not None:
                option = f"--{other.replace('_', '-')}"
                raise UsageError(option, f"--{one} decides it", f"leave one of --{one} and {option} out")
    if arguments.act_group == "row" and arguments.rotate is not None:
        why = "rows with one scale are always rotated, in the largest blocks of 64, 128 or 256 that fit"
        raise UsageError(f"--rotate {arguments.rotate}", why, "leave it out, or give --act-group 64, 128 or 256")
    if arguments.budget is not None and arguments.quality is None:
        raise UsageError("--budget", "it is for a profile to spend", "add --quality balanced or faithful")
    if arguments.budget is not None and not 1 <= arguments.budget <= 32:
        raise UsageError(f"--budget {arguments.budget:g}", "is no number of bits", "give 4.5 to 8")


def _group_of(asked: str | None) -> int | None:
    return None if asked is None else ROW if asked == "row" else int(asked)


def _text_of(recipe: Recipe, arguments: argparse.Namespace) -> str | None:
    """Return the calibration text that a recipe requires; raises UsageError if it is not available."""
    if arguments.calibrate or recipe.text is None:
        text: str | None = arguments.calibrate
        return text
    if recipe.text.source == "auto":
        return "auto"
    remedy = "give that file with --calibrate"
    raise UsageError(f"--recipe {arguments.recipe}", "its text is a file, which a recipe does not hold", remedy)


def _answers(recipe: Recipe, profile: Profile, text: Text | None) -> bool:
    """Return whether a recipe equals the profile's for this text."""
    question = (profile.name, profile.budget, text)
    return profile.made(recipe.formats.values()) and (recipe.profile, recipe.budget, recipe.text) == question
