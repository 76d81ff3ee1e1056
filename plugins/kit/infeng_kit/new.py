"""`infeng plugins new`: begins a plugin that builds, tests and runs as it stands."""

from __future__ import annotations

import argparse
from pathlib import Path

from infeng_core.api import Plugins, UsageError, load_config, say
from infeng_kit.kinds import KINDS
from infeng_kit.naming import names_of


class New:
    """The verb."""

    name = "new"
    help = "begin a plugin: a project that builds, tests and runs as it stands"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("name", metavar="NAME", help="of the plugin; its wheel is infeng-NAME")
        parser.add_argument("--kind", metavar="KIND", required=True, choices=[*KINDS], help=", ".join(KINDS))
        parser.add_argument(
            "--dir", metavar="DIR", help="absent or empty; default: infeng-NAME in the working directory"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the project; raises UsageError where it cannot be written."""
        from infeng_core.api.formats import BUILTIN
        from infeng_core.api.inspection import OPS
        from infeng_kit.templates import rendered, write

        names = names_of(arguments.name, _taken())
        if arguments.kind == "op" and names.ident in OPS:
            raise UsageError(f"op {names.ident}", "the engine has one of this name", "choose another NAME")
        if arguments.kind == "format" and f"{names.name}-g32" in BUILTIN:
            raise UsageError(f"format {names.name}-g32", "the engine has one of this name", "choose another NAME")
        folder = Path(arguments.dir or names.distribution)
        files = rendered(arguments.kind, names)
        write(files, folder)
        say(f"wrote {folder}: {', '.join(sorted(files))}", f"next: infeng plugins check {folder}")
        return 0


def _taken() -> set[str]:
    """Return names that a plugin cannot have: of plugins, sections of the settings, commands and families."""
    from infeng_core.api.formats import SCHEMA, families

    plugins = Plugins.discover(load_config())
    return {"infeng", *SCHEMA, *families(), *plugins.commands(), *(plugin.name for plugin in plugins.manifests)}
