"""What a conversion is made from, as one short key: equal keys mean that the result need not be made again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from infeng_core.files import reading
from infeng_core.formats.artifacts.manifest import FORMAT_MAJOR, FORMAT_MINOR
from infeng_core.formats.checkpoints import builtin_reader
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.kept_integers import RULES as STORAGE
from infeng_core.formats.model_readers import ReaderLookup
from infeng_core.formats.quantizers import BUILT_IN, DEFAULT, QuantizerChoice
from infeng_core.formats.recipes import digest
from infeng_core.formats.tokenizer_files import is_needed

RULES = 3  # counts changes of what a conversion makes of the same files


def conversion_key(
    source: Path,
    choice: FormatChoice,
    quantizer: QuantizerChoice = DEFAULT,
    recipe: bytes = b"",
    reader: ReaderLookup = builtin_reader,
) -> str:
    """Return a hexadecimal key over the source's files, formats, quantizer and the engine-native format's version.

    ``recipe``: the file that says the same, where it is kept with what is made.

    The built-in rounding counts by RULES alone. Weight files count by real path, size and time of change, for their
    contents are too large to hash each time; small files count by contents. Raises ModelError where a file is missing.
    """
    with reading(source):
        files = reader(source).files(source)
        identity: dict[str, Any] = {
            "weights": [_stamp(path) for path in files.weights],
            "small": {name: hashlib.sha256(data).hexdigest() for name, data in files.small.items()},
            "format": choice.base,
            "formats": list(choice.patterns.items()),  # their order decides
            "version": [FORMAT_MAJOR, FORMAT_MINOR, RULES],
        }
        if is_needed(files.small):
            identity["tokenizer"] = "made"
        if files.has_own_types and choice.defaults:
            identity["defaults"] = sorted(choice.defaults)  # which follow the file's own types
            identity["storage"] = STORAGE
        if files.rules:
            identity["reader"] = files.rules
        if quantizer.record != BUILT_IN:
            identity["quantizer"] = quantizer.record
        if recipe:
            identity["recipe"] = digest(recipe)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _stamp(path: Path) -> list[object]:
    real = Path(os.path.realpath(path, strict=True))  # links in a circle are an OSError here, not of Path.resolve
    stat = real.stat()
    return [str(real), stat.st_size, stat.st_mtime_ns]
