"""A command: ``infeng count MODEL TEXT``. No weights are read for it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from infeng_core.api import TOKENIZERS, Plugins, add_config_options, config_from, hookimpl, say
from infeng_core.api.formats import find


class Count:
    """The command."""

    name = "count"
    help = "count the tokens of a text"

    def __init__(self, unit: str) -> None:
        """Print ``unit`` after the number."""
        self._unit = unit

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("model", metavar="MODEL", help="model directory or hub name")
        parser.add_argument("text", metavar="TEXT", nargs="+", help="texts, counted together")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the number; raises InfengError for a model without a tokenizer."""
        config = config_from(arguments)
        tokenizer = Plugins.discover(config).get(TOKENIZERS, config.tokenizer.use)(find(arguments.model), config)
        say(f"{sum(map(len, tokenizer.encode(arguments.text)))} {self._unit}")
        return 0


@hookimpl
def infeng_commands(settings: Mapping[str, Any]) -> list[Count]:
    """Return the command."""
    return [Count(settings["unit"])]
