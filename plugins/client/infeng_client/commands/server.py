"""Common parts of the commands: options that name a server, and conversion of errors to the engine's."""

from __future__ import annotations

import argparse
import os

from infeng_client.client import Client
from infeng_client.errors import (
    ApiError,
    BadRequestError,
    BrokenStreamError,
    ConnectionFailedError,
    NotFoundError,
    OverloadedError,
    TimedOutError,
    UnauthorizedError,
)
from infeng_core.api import InfengError, UsageError

KEY = "INFENG_API_KEY"
TIMEOUT = 600.0
REMEDIES: dict[type[ApiError], str] = {
    UnauthorizedError: f"give --api-key KEY, or set {KEY}",
    NotFoundError: "see what there is with infeng adapters list URL",
    OverloadedError: "try again later",
    ConnectionFailedError: "check the address, and that a server runs there",
    BrokenStreamError: "ask again",
    TimedOutError: "give a longer --timeout",
}


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add URL, ``--api-key`` and ``--timeout``."""
    parser.add_argument("url", metavar="URL", help="address of the server, such as http://localhost:8000")
    text = f"key of the server (default: {KEY} of the environment)"
    parser.add_argument("--api-key", metavar="KEY", help=text)
    text = f"seconds that each answer may take (default: {TIMEOUT:g})"
    parser.add_argument("--timeout", type=float, metavar="S", help=text)


def client_of(arguments: argparse.Namespace) -> Client:
    """Return a client of the server that the options name; raises UsageError for an invalid address."""
    key = arguments.api_key or os.environ.get(KEY)
    try:
        return Client(arguments.url, key, timeout=arguments.timeout or TIMEOUT)
    except ValueError as error:
        raise UsageError(str(error)) from error


def explained(error: ApiError, url: str) -> InfengError:
    """Convert an error to the command line's, with a remedy."""
    remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "")
    if isinstance(error, OverloadedError) and error.retry_after is not None:
        remedy = f"try again in {error.retry_after:.1f} s"
    kind = UsageError if isinstance(error, BadRequestError) else InfengError
    return kind(url, error.message.removeprefix(f"{url}: ").removesuffix("."), remedy)
