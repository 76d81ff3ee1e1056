"""``--lora`` and ``--adapter``: the adapters of an engine, and the adapter of each prompt."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from infeng_core.errors import UsageError

if TYPE_CHECKING:
    from infeng_core.requests.request import Adapters


def add_lora_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--lora``, ``--adapters-dir`` and ``--adapter``."""
    group = parser.add_argument_group("adapters")
    group.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH[:SCALE]",
        help="a LoRA adapter: PEFT directory, artifact, plugin's file or hub name; a single one answers; repeats",
    )
    help = "folder whose subfolders are adapters by their names, read when they are asked for; repeats"
    group.add_argument("--adapters-dir", action="append", metavar="DIR", help=help)
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME[*W][,NAME...]",
        help="adapter for the answer: a name, several with weights, or base; once for all prompts, or once for each",
    )


def loras(arguments: argparse.Namespace) -> list[tuple[str, str, float]]:
    """Return (name, path, scale) of every ``--lora``; raises UsageError for one of another form."""
    return [parse_lora(text) for text in arguments.lora]


def parse_lora(text: str) -> tuple[str, str, float]:
    """Split ``name=path[:scale]``; the part after the last colon is a scale if it is a number."""
    name, equals, path = (part.strip() for part in text.partition("="))
    if not equals or not name or not path:
        raise UsageError(f"--lora {text}", "it is not name=path", "write --lora poet=path/to/adapter, or poet=path:0.5")
    head, colon, tail = path.rpartition(":")
    if colon and head:
        try:
            scale = float(tail)
        except ValueError:
            return name, path, 1.0
        if not math.isfinite(scale):
            raise UsageError(f"--lora {text}", f"{tail} is no scale", "give a finite number; 1 leaves it as trained")
        return name, head, scale
    return name, path, 1.0


def parse_adapter(text: str) -> Adapters | None:
    """Return the meaning of ``NAME[*W][,NAME[*W]...]``: None for ``base``, a name, or names with weights."""
    from infeng_core.adapters.names import BASE

    if text == BASE:
        return None
    pairs = []
    for part in text.split(","):
        name, star, weight = (piece.strip() for piece in part.partition("*"))
        remedy = "write --adapter poet, --adapter poet*0.5,coder or --adapter base"
        if not name or (star and not weight):
            raise UsageError(f"--adapter {text}", f"{part!r} is not a name, or a name and its weight", remedy)
        if name == BASE:
            raise UsageError(f"--adapter {text}", "the base is under every adapter and cannot be combined", remedy)
        try:
            value = float(weight) if star else 1.0
        except ValueError:
            raise UsageError(f"--adapter {text}", f"{weight!r} is not a number", remedy) from None
        pairs.append((name, value))
    return pairs[0][0] if len(pairs) == 1 and pairs[0][1] == 1.0 else tuple(pairs)


def adapters_of(arguments: argparse.Namespace, prompts: int) -> list[Adapters | None]:
    """Return the adapters of each prompt; raises UsageError if the choice is ambiguous.

    ``--adapter`` gives them once for all prompts or once for each. Without it a single ``--lora`` serves all prompts;
    without either the base model does.
    """
    names = list(dict.fromkeys(name for name, _, _ in loras(arguments)))
    if not arguments.adapter:
        if len(names) > 1:
            why = f"{len(names)} adapters are given and none is chosen"
            raise UsageError("--lora", why, f"add --adapter {names[0]}, or --adapter {','.join(names)} to combine them")
        return [names[0] if names else None] * prompts
    chosen = [parse_adapter(text) for text in arguments.adapter]
    if len(chosen) == 1:
        return chosen * prompts
    if len(chosen) != prompts:
        why = f"{len(chosen)} are given for {prompts} prompts"
        raise UsageError("--adapter", why, "give one for all prompts, or one for each")
    return chosen


def as_text(adapter: Adapters | None) -> str:
    """Return an adapter in the form of ``--adapter``."""
    from infeng_core.adapters.names import BASE

    if adapter is None or isinstance(adapter, str):
        return adapter or BASE
    return ",".join(name if weight == 1.0 else f"{name}*{weight:g}" for name, weight in adapter)
