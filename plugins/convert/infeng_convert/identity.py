"""The key of a conversion: equal keys mean equal results, so that the work need not be repeated."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from infeng_convert.checkpoints import builtin_reader
from infeng_convert.interfaces.readers import ReaderLookup
from infeng_convert.kept_integers import RULES as STORAGE
from infeng_convert.quantizers import DEFAULT, QuantizerChoice
from infeng_convert.recipes import digest
from infeng_convert.tokenizer_files import is_needed
from infeng_core.api.formats import BUILT_IN, FORMAT_MAJOR, FORMAT_MINOR, FormatChoice, reading

RULES = 3  # raised whenever a conversion makes other bytes of the same files


def conversion_key(
    source: Path,
    choice: FormatChoice,
    quantizer: QuantizerChoice = DEFAULT,
    recipe: bytes = b"",
    reader: ReaderLookup = builtin_reader,
) -> str:
    """Return a hexadecimal key over the source's files, formats, quantizer and the engine-native format's version.

    ``recipe``: the file that says the same, if it is kept with the result.

    RULES stands for the built-in rounding. Weight files count by real path, size and modification time, because they
    are too large to hash each time; small files count by contents. Raises ModelError for a missing file.
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
            identity["defaults"] = sorted(choice.defaults)  # defaults follow the file's own types
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
