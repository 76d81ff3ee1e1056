"""What a conversion is made from, as one short key: equal keys mean that the result need not be made again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from infeng_core.files import reading
from infeng_core.formats.checkpoints import small_files, weight_files
from infeng_core.formats.choice import FormatChoice
from infeng_core.formats.gguf import storage
from infeng_core.formats.native import FORMAT_MAJOR, FORMAT_MINOR
from infeng_core.formats.quantizers import BUILT_IN, DEFAULT, QuantizerChoice
from infeng_core.formats.tokenizer_files import is_needed

RULES = 2  # counts changes of what a conversion makes of the same files


def conversion_key(source: Path, choice: FormatChoice, quantizer: QuantizerChoice = DEFAULT) -> str:
    """Return a hexadecimal key over the source's files, formats, quantizer and the engine-native format's version.

    The built-in rounding counts by RULES alone. Weight files count by real path, size and time of change, for their
    contents are too large to hash each time; small files count by contents. Raises ModelError where a file is missing.
    """
    with reading(source):
        small = small_files(source)
        identity: dict[str, object] = {
            "weights": [_stamp(path) for path in weight_files(source)],
            "small": {name: hashlib.sha256(data).hexdigest() for name, data in small.items()},
            "format": choice.base,
            "formats": list(choice.patterns.items()),  # their order decides
            "version": [FORMAT_MAJOR, FORMAT_MINOR, RULES],
        }
        if is_needed(small):
            identity["tokenizer"] = "made"
        if source.is_file() and choice.defaults:
            identity["defaults"] = sorted(choice.defaults)  # which follow the file's own types
            identity["storage"] = storage.RULES
        if quantizer.record != BUILT_IN:
            identity["quantizer"] = quantizer.record
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _stamp(path: Path) -> list[object]:
    real = path.resolve(strict=True)
    stat = real.stat()
    return [str(real), stat.st_size, stat.st_mtime_ns]
