"""The arguments of this engine in another process: model, threads and settings of the command."""

from __future__ import annotations

import argparse
from pathlib import Path

from infeng_bench import options
from infeng_bench.models import synthetic
from infeng_core.api import EngineConfig

FORMAT = EngineConfig().model.format  # of the linears
RUNNING = EngineConfig().scheduler.max_running


def own_arguments(arguments: argparse.Namespace, source: Path, threads: int) -> list[str]:
    """Return the arguments of our programs for the model, threads and settings of the command.

    Raises UsageError for an unknown setting, before anything is loaded.
    """
    options.config(arguments)
    if arguments.synthetic:
        model = [str(synthetic.native_directory(arguments.synthetic, arguments.format or FORMAT))]
    else:
        model = [str(source), *(["--set", f"model.format={arguments.format}"] if arguments.format else [])]
    return [*model, "--threads", str(threads), *setting_words(arguments)]


def setting_words(arguments: argparse.Namespace) -> list[str]:
    """Return the words of a command line for the user's manifest and settings."""
    words = ["--manifest", arguments.manifest] if arguments.manifest else []
    words += [word for text in arguments.assignments for word in ("--set", text)]
    return words + (["--strict"] if arguments.strict else [])


def make_room(arguments: argparse.Namespace, places: int) -> None:
    """Raise our engine's limit to ``places`` running requests unless the user has set it."""
    setting = "scheduler.max_running"
    if places > RUNNING and not any(text.startswith(f"{setting}=") for text in arguments.assignments):
        arguments.assignments.append(f"{setting}={places}")
