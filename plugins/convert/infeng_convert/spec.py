"""All that decides what a conversion makes of a model, in one object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infeng_convert.checkpoints import builtin_reader
from infeng_convert.identity import conversion_key
from infeng_convert.quantizers import DEFAULT, QuantizerChoice
from infeng_convert.recipes import Recipe
from infeng_core.api import FormatChoice, FormatLookup, builtin_format
from infeng_core.api.formats import ReaderLookup, Statistics


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
