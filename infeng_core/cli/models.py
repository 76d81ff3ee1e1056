"""``infeng models``: what this engine runs, what a file or directory is, and what it would need."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.cli import say
from infeng_core.cli.options import add_config_options, config_from
from infeng_core.errors import KernelError
from infeng_core.machine import memory
from infeng_core.plug.manager import Plugins

if TYPE_CHECKING:
    from infeng_core.formats.survey import Survey

BLOCK = 16  # positions


class Models:
    """``infeng models [PATH...]``."""

    name = "models"
    help = "what this engine runs, what files and directories are, and what memory they would need"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        text = "a model, an adapter, or a folder of them; without one, families and formats are listed"
        parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help=text)
        parser.add_argument("--format", metavar="F", help="the weight format that sizes are counted in")
        parser.add_argument("--json", action="store_true", help="for machines")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report; the status is 1 where a path that was named cannot be run."""
        from infeng_core.formats import choose, use_families
        from infeng_core.formats.survey import models_below, readable, survey

        config = config_from(arguments, model__format=arguments.format)
        plugins = Plugins.discover(config)
        use_families(plugins)
        if not arguments.paths:
            known = {**readable(), "readers": sorted(plugins.sources())}
            print(json.dumps(known, indent=2)) if arguments.json else say(*_listing(known))
            return 0
        choice = choose(config, plugins.quant_format)
        backend = plugins.backend(config.backend.use)
        found = []
        for path in arguments.paths:
            for one in models_below(path.expanduser()):
                made = survey(one, choice, plugins.quant_format)
                try:
                    block = 0 if made.config is None else backend.block_bytes(made.config, config)
                except KernelError as error:  # of the cache that is asked for
                    made, block = replace(made, why_not=made.why_not or str(error)), 0
                found.append(_facts(made, block))
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            say(*(line for facts in found for line in _report(facts)))
        named = {str(path.expanduser()) for path in arguments.paths}
        return int(any(facts["why_not"] and facts["path"] in named for facts in found))


def _listing(known: Mapping[str, Any]) -> Iterator[str]:
    yield "families"
    for name, architectures in known["families"].items():
        yield f"  {name:14} {', '.join(architectures)}"
    yield "files"
    yield f"  safetensors    Hugging Face directories and hub names: {', '.join(known['safetensors'])}"
    yield f"  GGUF           {', '.join(known['gguf']['architectures'])}: {', '.join(known['gguf']['types'])}"
    if known["readers"]:
        yield f"  plugins'       {', '.join(known['readers'])}"
    yield "weight formats"
    yield f"  {', '.join(known['formats'])}"


def _facts(made: Survey, block_bytes: int) -> dict[str, Any]:
    """Return a survey as plain data, with what the cache takes. block_bytes: of 16 positions."""
    facts = {key: value for key, value in vars(made).items() if key not in ("path", "config")}
    facts |= {"path": str(made.path), "available_bytes": memory.available_bytes()}
    if made.config is not None:
        context = made.config.max_positions
        facts |= {"family": made.config.family, "context": context}
        facts |= {"cache_bytes_per_token": block_bytes // BLOCK, "cache_bytes": -(-context // BLOCK) * block_bytes}
    return facts


def _report(facts: Mapping[str, Any]) -> Iterator[str]:
    yield facts["path"]
    if "family" in facts:
        yield f"  model      {facts['kind']}, {facts['family']}, {_count(facts['parameters'])} parameters"
        yield f"  stored     {', '.join(f'{name} x {count}' for name, count in facts['stored'].items())}"
        template = "" if facts["has_template"] else ", no chat template"
        yield f"  tokenizer  {'yes' if facts['has_tokenizer'] else 'NONE: prompts are token ids'}{template}"
        shown = "; ".join(f"{format}: {', '.join(names)}" for format, names in facts["formats"].items())
        yield f"  weights    {memory.gigabytes(facts['weight_bytes'])} ({shown})"
        for change, count in facts["rounded_again"].items():
            yield f"  rounded    {change} ({count})"
        each, whole = facts["cache_bytes_per_token"], memory.gigabytes(facts["cache_bytes"])
        yield f"  cache      {each} bytes a token, {whole} for the whole context of {facts['context']}"
    yield f"  runs       {_verdict(facts)}"


def _verdict(facts: Mapping[str, Any]) -> str:
    if facts["why_not"]:
        return f"no: {facts['why_not']}"
    available = facts["available_bytes"]
    if available is not None and facts["weight_bytes"] > available:
        return f"no: {memory.gigabytes(available)} are available"
    return "yes"


def _count(number: int) -> str:
    """Return a count as people say it: 1.10 B."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
