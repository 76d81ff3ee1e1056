"""Pack or run a model in a process of its own and report the memory that it took.

``python -m infeng_bench.engine.footprint pack FOLDER --dest MODEL`` packs random weights of the config.json in FOLDER;
``run MODEL`` lets one sequence fill the engine's context. Each writes one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infeng_convert.api import pack_checkpoint
from infeng_inspect.api import Footprint, footprint

from infeng_bench.engine.running import greedy
from infeng_bench.models.random_checkpoint import Drawn
from infeng_core.api import Engine, EngineConfig, InfengError, Plugins, ResourceError, add_config_options, config_from
from infeng_core.api.formats import choose, format_lookup


def main(argv: Sequence[str] | None = None) -> int:
    """Pack or run, print the figures as JSON and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infeng_bench.engine.footprint", description="measure memory")
    parser.add_argument("work", choices=("pack", "run"))
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a config.json, or a converted model")
    parser.add_argument("--dest", metavar="MODEL", type=Path, help="where to pack the model")
    parser.add_argument("--format", metavar="F", help="weight format")
    parser.add_argument("--new", metavar="N", type=int, default=4, help="tokens to decode (4)")
    add_config_options(parser)
    arguments = parser.parse_args(argv)
    # Only the answer goes to standard output; other prints go to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            config = config_from(arguments, model__path=str(arguments.folder), model__format=arguments.format)
            is_pack = arguments.work == "pack"
            told = packed(arguments.folder, arguments.dest, config) if is_pack else ran(config, arguments.new)
        except InfengError as error:
            print(f"infeng: error: {error}", file=sys.stderr)
            return error.exit_status
        print(json.dumps(told), file=answer)
    return 0


def packed(folder: Path, destination: Path, config: EngineConfig) -> dict[str, Any]:
    """Pack random weights; return their bytes, the peak growth of the process in bytes, and seconds."""
    lookup = format_lookup(Plugins.discover(config))
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    drawn = Drawn(folder.name, json.loads(files["config.json"]), files)
    choice, before, begin = choose(config, lookup), _taken().total, time.perf_counter()
    made = pack_checkpoint(drawn, destination, choice, f"drawn-{folder.name}", lookup=lookup, progress=False)
    seconds = time.perf_counter() - begin
    return {"nbytes": made.nbytes, "grown_bytes": _taken().peak - before, "seconds": seconds}


def ran(config: EngineConfig, new: int) -> dict[str, Any]:
    """Load a model, decode ``new`` tokens after a prompt that fills the rest of the context; return its memory."""
    begin = time.perf_counter()
    with Engine(config=config) as engine:
        seconds = time.perf_counter() - begin
        vocab, length = engine.model.config.vocab, engine.limits.context - new
        prompt = [index * 31 % vocab for index in range(length)]
        [completion] = engine.generate([prompt], greedy(new))
        taken = _taken()
        return {
            "tokens": len(completion.token_ids),
            "load_seconds": seconds,
            "anonymous_bytes": taken.anonymous,
            "mapped_bytes": taken.mapped,
            "measured_bytes": taken.total,
            "peak_bytes": taken.peak,
        }


def _taken() -> Footprint:
    found = footprint()
    if found is None:
        raise ResourceError("memory", "this system does not report the memory of a process", "measure on Linux")
    return found


if __name__ == "__main__":
    sys.exit(main())
