"""``infeng convert-adapter``: pack adapters once, ahead of time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_convert.api import say_converted

from infeng_core.api import UsageError, add_config_options, config_from, say

if TYPE_CHECKING:
    from infeng_core.api import EngineConfig, Plugins
    from infeng_core.api.formats import LoadedModel
    from infeng_peft.many import Packed


class ConvertAdapter:
    """``infeng convert-adapter PEFT DEST --model MODEL``, or ``DIR... --out FOLDER`` for many."""

    name = "convert-adapter"
    help = "pack a LoRA adapter, or a folder of them, into engine-native directories"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        help = (
            "directory that PEFT saved, file that a plugin reads, or hub name, and the directory to write; with --out, "
        )
        help += "any number of these and of folders whose subfolders are adapters"
        parser.add_argument("words", metavar="PEFT [DEST]", nargs="+", help=help)
        parser.add_argument(
            "--out", type=Path, metavar="FOLDER", help="write each adapter into a subfolder of its name"
        )
        parser.add_argument("--model", required=True, help="the base: a model directory or a hub name")
        parser.add_argument("--format", metavar="F", help="the base's format, which DoRA's norms follow")
        storages = ("int8", "int8t4", "bf16", "f32")
        parser.add_argument("--dtype", choices=storages, help="storage (default: adapters.dtype, int8)")
        parser.add_argument("--force", action="store_true", help="replace engine-native adapters that are there")
        parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert; the summary goes to stdout. Returns 1 if one of many failed."""
        from infeng_core.api import Plugins
        from infeng_core.api.adapters import load_model

        if arguments.out is None and len(arguments.words) != 2:
            why = f"{len(arguments.words)} are given, and two are expected: PEFT DEST"
            raise UsageError("arguments", why, "give the directory to write behind the adapter, or --out FOLDER")
        config = config_from(arguments, model__format=arguments.format)
        plugins = Plugins.discover(config)
        model = load_model(arguments.model, config, plugins)
        run = _one if arguments.out is None else _many
        return run(arguments, model, config, plugins)


def _one(arguments: argparse.Namespace, model: LoadedModel, config: EngineConfig, plugins: Plugins) -> int:
    from infeng_peft.conversion import convert_adapter

    source, destination = arguments.words
    dtype = arguments.dtype or config.adapters.dtype
    made = convert_adapter(source, Path(destination), model, dtype, force=arguments.force, providers=plugins)
    fits = "this base alone" if made.bound else "every base of these shapes"
    say_converted(made, arguments, "with the same contents", f" as {made.dtype}", f"; fits {fits}")
    return 0


def _many(arguments: argparse.Namespace, model: LoadedModel, config: EngineConfig, plugins: Plugins) -> int:
    from infeng_peft.many import convert_all, sources

    found = sources(arguments.words, plugins)
    dtype = arguments.dtype or config.adapters.dtype
    packed = convert_all(found, arguments.out, model, dtype, force=arguments.force, providers=plugins)
    for name, error in packed.failed.items():
        say(f"infeng: {name}: {error}", to_stderr=True)
    if arguments.json:
        print(json.dumps(_document(packed)))
    else:
        new = sum(not made.reused for made in packed.made.values())
        nbytes = sum(made.nbytes for made in packed.made.values())
        counts = f"{new} packed, {len(packed.made) - new} there already, {len(packed.failed)} failed"
        say(f"{arguments.out}: {counts}; {nbytes / 1e6:.1f} MB in {packed.seconds:.1f} s")
    return 1 if packed.failed else 0


def _document(packed: Packed) -> dict[str, object]:
    adapters = {name: vars(made) | {"path": str(made.path)} for name, made in packed.made.items()}
    return {"adapters": adapters, "failed": packed.failed, "seconds": round(packed.seconds, 3)}
