"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from infeng_core.plug.assembly import load_config
from infeng_core.settings.config import EngineConfig
from infeng_core.settings.manifest import parse_assignment


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--manifest``, ``--set`` and ``--strict``."""
    group = parser.add_argument_group("assembly")
    group.add_argument("--manifest", metavar="FILE", help="engine manifest: a YAML file or the name of a shipped one")
    group.add_argument(
        "--set",
        metavar="KEY.SUB=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="override one setting; repeats",
    )
    group.add_argument("--strict", action="store_true", help="a plugin that fails is an error, not a warning")


def config_from(arguments: argparse.Namespace, **more: object) -> EngineConfig:
    """Return the configuration for the options; ``more``: ``section__key=value``, None meaning not given."""
    overrides: dict[str, object] = {key.replace("__", "."): value for key, value in more.items() if value is not None}
    overrides |= dict(parse_assignment(text) for text in arguments.assignments)
    if arguments.strict:
        overrides["kernels.strict"] = True
    return load_config(Path(arguments.manifest) if arguments.manifest else None, overrides=overrides)
