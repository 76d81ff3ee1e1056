"""The inputs of a conversion in one object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infeng_convert.checkpoints import builtin_reader
from infeng_convert.identity import conversion_key
from infeng_convert.interfaces.calibrators import Statistics
from infeng_convert.interfaces.readers import ReaderLookup
from infeng_convert.quantizers import DEFAULT, QuantizerChoice
from infeng_convert.recipes import Recipe
from infeng_core.api.formats import FormatChoice, FormatLookup, builtin_format


@dataclass(frozen=True)
class ConversionSpec:
    """The inputs of a conversion: equal specs make equal bytes of equal sources."""

    choice: FormatChoice
    lookup: FormatLookup = builtin_format
    quantizer: QuantizerChoice = DEFAULT  # chooses the stored integers; its settings name the calibration text
    statistics: Statistics | None = None  # the quantizer's statistics of that text
    recipe: Recipe | None = None  # the file with the same content, which is kept with the result
    reader: ReaderLookup = builtin_reader  # finds the reader of the source

    @property
    def is_calibrated(self) -> bool:
        """Whether weights are fitted to a text."""
        return self.statistics is not None

    @property
    def recipe_file(self) -> bytes:
        """The file of the recipe; empty without one."""
        return b"" if self.recipe is None else self.recipe.written()

    def key(self, source: Path) -> str:
        """Return the key of the conversion of ``source``; raises ModelError for a missing file."""
        return conversion_key(source, self.choice, self.quantizer, self.recipe_file, self.reader)
