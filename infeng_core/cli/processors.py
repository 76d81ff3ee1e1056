"""The options that plugins add to commands: the logit processors and the fields of requests that they select."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from infeng_core.cli.generation import sampling_fields
from infeng_core.plug.hookspecs import RunOptions


def option_groups(arguments: argparse.Namespace) -> Iterable[RunOptions]:
    """Return the groups of options that plugins added to a command."""
    found: Iterable[RunOptions] = getattr(arguments, "run_options", ())
    return found


def processors_of(arguments: argparse.Namespace) -> tuple[tuple[str, Any], ...]:
    """Return the logit processors that the options select; raises UsageError for an invalid value."""
    return tuple(pair for group in option_groups(arguments) for pair in group.processors(arguments))


def request_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of all options, sampling included, as fields of a request to a server; raises UsageError."""
    fields = sampling_fields(arguments)
    for group in option_groups(arguments):
        fields |= group.fields(arguments)
    return fields
