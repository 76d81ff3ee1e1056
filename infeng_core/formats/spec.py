"""All that decides what a conversion makes of a model, in one object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infeng_core.formats.checkpoints import builtin_reader
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.identity import conversion_key
from infeng_core.formats.model_readers import ReaderLookup
from infeng_core.formats.packer import Statistics
from infeng_core.formats.quant import FormatLookup, builtin_format
from infeng_core.formats.quantizers import DEFAULT, QuantizerChoice
from infeng_core.formats.recipes import Recipe


@dataclass(frozen=True)
class ConversionSpec:
    """What is made of a source: equal specs make equal bytes of equal sources."""

    choice: FormatChoice
    lookup: FormatLookup = builtin_format
    quantizer: QuantizerChoice = DEFAULT  # chooses what integer formats store; its settings name the calibration text
    statistics: Statistics | None = None  # what it is told of that text
    recipe: Recipe | None = None  # says the same in a file, which is kept with what is made
    reader: ReaderLookup = builtin_reader  # finds what reads the source

    @property
    def is_calibrated(self) -> bool:
        """Whether weights are fitted to a text."""
        return self.statistics is not None

    @property
    def recipe_file(self) -> bytes:
        """The file of the recipe; empty without one."""
        return b"" if self.recipe is None else self.recipe.written()

    def key(self, source: Path) -> str:
        """Return what the conversion of ``source`` is known by; raises ModelError where a file is missing."""
        return conversion_key(source, self.choice, self.quantizer, self.recipe_file, self.reader)
