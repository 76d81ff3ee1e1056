"""The server's stable API for plugins that add routes (hook ``infeng_serve_routes``); the rest may change anytime."""

from infeng_serve.app import Route
from infeng_serve.auth import Caller
from infeng_serve.http import Call
from infeng_serve.protocol.errors import ApiError
from infeng_serve.service import Service

__all__ = ["ApiError", "Call", "Caller", "Route", "Service"]
