"""`infeng ray`: serve a model by many servers on Ray, behind one gateway."""

from __future__ import annotations

import argparse
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any, cast

from infeng_core.api import Plugins, UsageError, say
from infeng_ray.router import ROUTES

if TYPE_CHECKING:
    from infeng_serve.api.commands import Serve
    from infeng_serve.api.hosting import Settings

    from infeng_core.api import EngineConfig
    from infeng_ray.serving import Application

MOST_REPLICAS = 1024

OWN = ("host", "port", "grpc_port", "ready_file", "journal", "tls_cert", "tls_key", "allowed_hosts")
"""Options of `serve` that the gateway follows in place of its replicas."""


class Noted:
    """A parser, or a group of one, that remembers the arguments that are added to it."""

    def __init__(self, target: Any, actions: list[argparse.Action] | None = None) -> None:
        """Add to ``target``; ``actions``: the list that is extended."""
        self._target = target
        self.actions: list[argparse.Action] = [] if actions is None else actions

    def add_argument(self, *names: str, **more: Any) -> argparse.Action:
        """Add an argument and remember it."""
        action: argparse.Action = self._target.add_argument(*names, **more)
        self.actions.append(action)
        return action

    def __getattr__(self, name: str) -> Any:
        """Return a method of the target; groups that it makes remember their arguments too."""
        method = getattr(self._target, name)
        if name not in ("add_argument_group", "add_mutually_exclusive_group"):
            return method
        return lambda *names, **more: Noted(method(*names, **more), self.actions)


class RayCommand:
    """The command."""

    name = "ray"
    help = "serve a model by many servers on Ray, each call where its adapter is in memory"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments: those of Ray, and all of `infeng serve`."""
        from infeng_serve.api.commands import Serve

        group = parser.add_argument_group("replicas")
        group.add_argument(
            "--replicas", type=counts, default=(1, 1), metavar="MIN:MAX", help="fewest and most servers (default: 1:1)"
        )
        group.add_argument("--cores", type=int, metavar="N", help="cores of each, to which it is pinned (all/MAX)")
        group.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster; else Ray is started here")
        group.add_argument("--route", choices=sorted(ROUTES), default="rendezvous", help="choice of a replica")
        group.add_argument(
            "--up-after", type=float, default=5.0, metavar="S", help="seconds of waiting requests until one more (5)"
        )
        group.add_argument(
            "--down-after", type=float, default=120.0, metavar="S", help="seconds of free places until one less (120)"
        )
        options = Noted(parser)
        Serve({}).configure(cast(argparse.ArgumentParser, options))
        parser.set_defaults(serve_actions=options.actions)

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until SIGTERM or Ctrl-C; raises InfengError."""
        serve: Any = Plugins.discover().command("serve")
        config, settings, keys = configured(serve, arguments)
        application_of = _ray()
        low, high = arguments.replicas
        cores = arguments.cores or max(1, len(os.sched_getaffinity(0)) // high)
        from infeng_ray.listener import Listener
        from infeng_ray.process import Plan
        from infeng_ray.serving import NODE, Scale

        token = secrets.token_hex(16)
        plan = Plan(
            (*forwarded(arguments), "--threads", str(arguments.threads or cores)),
            NODE if arguments.address else "127.0.0.1",
            cores,
            token,
            settings.journal or "",
            drain_seconds=settings.drain_timeout,
        )
        scale = Scale(low, high, arguments.up_after, arguments.down_after, config.scheduler.max_running)
        application: Application = application_of(plan, scale, arguments.address)
        try:
            names = settings.names or (_name_of(str(config.model.path)),)
            listener = Listener(
                settings, keys, application.members, ROUTES[arguments.route](), token, (*names, str(config.model.path))
            )
            say(
                f"listening at {listener.url}, starting {low} to {high} replicas of {config.model.path}", to_stderr=True
            )
            failed: list[BaseException] = []

            def deploy() -> None:
                try:
                    application.deploy()
                except BaseException as error:
                    failed.append(error)
                    listener.stop()

            threading.Thread(target=deploy, name="infeng-deploy", daemon=True).start()
            listener.run(has_signals=True, ready=lambda: say(f"serving {names[0]}", to_stderr=True))
            if failed:
                raise failed[0]
        finally:
            application.close()
        return 0


def counts(text: str) -> tuple[int, int]:
    """Read ``MIN:MAX`` or ``N``; raises ArgumentTypeError."""
    low, _, high = text.partition(":")
    try:
        found = int(low), int(high or low)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1] <= MOST_REPLICAS:
        raise argparse.ArgumentTypeError(f"{text!r} is no MIN:MAX of 1 to {MOST_REPLICAS}")
    return found


def configured(serve: Serve, arguments: argparse.Namespace) -> tuple[EngineConfig, Settings, Any]:
    """Return the configuration, the server's settings and its keys; raises UsageError."""
    from infeng_serve.api.commands import keys_of

    config, settings = serve.configured(arguments)
    if settings.grpc_port is not None:
        raise UsageError("--grpc-port", "the gateway speaks HTTP alone", "leave it out")
    if arguments.replicas[1] > 1 and settings.tls_key and not settings.tls_cert:
        raise UsageError("--tls-key", "there is no certificate to it", "give --tls-cert as well")
    return config, settings, keys_of(arguments.api_key, arguments.admin_key, settings.api_keys)


def forwarded(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of `infeng serve` that differ from their defaults, without those of OWN."""
    words: list[str] = []
    for action in arguments.serve_actions:
        value = getattr(arguments, action.dest, None)
        if action.dest in (*OWN, "threads", "help") or value == action.default or value is None:
            continue
        if not action.option_strings:
            words.append(str(value))
            continue
        name = action.option_strings[-1]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [name] if isinstance(one, bool) else [f"{name}={one}"]
    return words


def _name_of(reference: str) -> str:
    from infeng_serve.api.hosting import name_of

    return name_of(reference)


def _ray() -> type[Application]:
    """Return the application, which needs Ray; raises UsageError without it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from infeng_ray.serving import Application
    except ImportError as error:
        raise UsageError("infeng ray", f"{error.name} is not installed", "pip install 'infeng-ray[ray]'") from None
    return Application
