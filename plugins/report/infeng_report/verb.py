"""`infeng bench report`: a self-contained HTML page from any set of result files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench.reports import results

from infeng_core.api import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="results that infeng bench ... --json wrote")
    parser.add_argument("-o", "--output", "--report", default="report.html", metavar="OUT", help="the page")


def run(arguments: argparse.Namespace) -> int:
    """Read, check and write. Raises UsageError for a file that is not a result."""
    found = [(Path(name).name, _checked(name)) for name in arguments.files]
    target = Path(arguments.output)
    results.write_text(target, page(found))
    print(f"{target}: {len(found)} results")
    return 0


def page(found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the HTML of results, each with its name."""
    from infeng_report.page import page  # imports Plotly, which the options of the verb do not need

    return page(found)


def _checked(name: str) -> dict[str, Any]:
    import jsonschema

    result = results.read(name)
    try:
        jsonschema.Draft202012Validator(results.schema()).validate(result)
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path) or "the result"
        raise UsageError(name, f"{where}: {error.message}", "measure again with this version") from error
    return result
