"""From a profile to a recipe: what the tensors of one model lose in each format, and who gets the bits."""

from __future__ import annotations

from pathlib import Path

from infeng_core.calibration.profiles import Losses, Profile, allocate, priors
from infeng_core.calibration.sensitivity import LENGTH, portion, sensitivities, tokens_for
from infeng_core.calibration.start import Sample, forward
from infeng_core.files import reading
from infeng_core.formats.model_readers import Checkpoint
from infeng_core.formats.progress import Progress, Show
from infeng_core.formats.providers import reader_of
from infeng_core.formats.quant import fitting
from infeng_core.formats.recipes import Recipe, patterns
from infeng_core.models.weights import PANEL_ROWS
from infeng_core.plug.manager import Plugins
from infeng_core.settings.config import EngineConfig


def make(
    profile: Profile,
    given: Sample | None,
    source: Path,
    config: EngineConfig,
    plugins: Plugins,
    show: Show = True,
) -> Recipe:
    """Return the recipe of a profile for the model ``source``.

    Losses are measured on the text ``given``; without one they are what is usual. Raises UsageError for a budget that
    cannot be kept, and what reading and running the model raise.
    """
    with reading(source):
        checkpoint = reader_of(source, plugins).open(source)
    layout, budget = checkpoint.layout, profile.budget
    losses = priors(layout, profile)
    # A budget that is too small says so before the work.
    allocate(layout, profile, budget, losses, plugins.quant_format)
    if budget is not None and given is not None:
        losses = _measured(profile, given, checkpoint, config, plugins, show)
    found = allocate(layout, profile, budget, losses, plugins.quant_format)
    sizes = {spec.name: spec.k for spec in layout.tensors}
    found = {name: fitting(name, sizes[name], plugins.quant_format(format)).name for name, format in found.items()}
    text = None if given is None else given.text
    return Recipe(profile.name, patterns(found), config.model.quantizer, text, budget)


def _measured(
    profile: Profile, given: Sample, checkpoint: Checkpoint, config: EngineConfig, plugins: Plugins, show: Show
) -> Losses:
    layout = checkpoint.layout
    ids = portion(given.ids, tokens_for(layout, len(profile.ladder)))
    total = sum(2 * spec.panels * PANEL_ROWS * spec.k for spec in layout.tensors if spec.name != "lm_head")
    threads = plugins.cpu.place(config.threads, 0).workers
    with Progress(total, "measuring", show) as shown:
        course = forward(ids, config, plugins, checkpoint.config, most=LENGTH)
        return sensitivities(course, checkpoint, profile.ladder, plugins.quant_format, threads, shown.update)
