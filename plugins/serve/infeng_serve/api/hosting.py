"""What wheels need that answer the server's calls in front of it, with its connections, keys and limits.

It may change with each version.
"""

from infeng_serve.adapters import inner_name
from infeng_serve.auth import NOBODY, Keys
from infeng_serve.connection import Bounds, Connection, config_of
from infeng_serve.failures import GoneError, failure, unauthenticated
from infeng_serve.host_header import Hosts, is_loopback
from infeng_serve.http import Call, Receive, Scope, Send, unzipped
from infeng_serve.limits import Limits
from infeng_serve.model import name_of
from infeng_serve.notify import Supervisor
from infeng_serve.protocol.errors import ApiError, unavailable
from infeng_serve.server import FAREWELL_SECONDS, SPARE_FILES, write_atomically
from infeng_serve.settings import Settings
from infeng_serve.sockets import BACKLOG, listening, raise_open_files

__all__ = [
    "BACKLOG",
    "FAREWELL_SECONDS",
    "NOBODY",
    "SPARE_FILES",
    "ApiError",
    "Bounds",
    "Call",
    "Connection",
    "GoneError",
    "Hosts",
    "Keys",
    "Limits",
    "Receive",
    "Scope",
    "Send",
    "Settings",
    "Supervisor",
    "config_of",
    "failure",
    "inner_name",
    "is_loopback",
    "listening",
    "name_of",
    "raise_open_files",
    "unauthenticated",
    "unavailable",
    "unzipped",
    "write_atomically",
]
