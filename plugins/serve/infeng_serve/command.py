"""``infeng serve``: its arguments, their mapping to settings, and running the server."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from infeng_core.api import UsageError, add_config_options, config_from, get_logger, say
from infeng_core.api.servers import StartupTimes, parse_lora

if TYPE_CHECKING:
    from infeng_core.api import EngineConfig
    from infeng_serve.settings import Settings

_log = get_logger(__name__)


class Options(Protocol):
    """An argument parser or a group of one."""

    def add_argument(self, *names: str, **how: Any) -> object:
        """Add one."""


class Serve:
    """The command."""

    name = "serve"
    help = "serve a model, and adapters as further models, by OpenAI's HTTP API"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: the defaults, with those of the environment."""
        self._settings = settings

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments; an argument overrides the manifest's setting of the same name."""
        parser.add_argument("model", nargs="?", metavar="MODEL", help="model directory or hub name (model.path)")
        parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
        parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, metavar="N", help="port to listen on; 0: any free port (8000)")
        parser.add_argument(
            "--grpc-port", type=int, metavar="N", help="port of the gRPC service; 0: any free port (none)"
        )
        parser.add_argument("--ready-file", metavar="FILE", help="write the URL here once requests are served")
        parser.add_argument(
            "--served-model-name", action="append", dest="names", metavar="NAME", help="name of the base model; repeats"
        )
        parser.add_argument("--chat-template", metavar="FILE", help="a Jinja file instead of the model's own template")
        parser.add_argument(
            "--lora",
            action="append",
            default=[],
            metavar="NAME=PATH[:SCALE]",
            help="serve an adapter as a model; repeats",
        )
        parser.add_argument(
            "--adapters-dir",
            action="append",
            metavar="DIR",
            help="folder whose subfolders are served as models, each read when a call names it; repeats",
        )
        parser.add_argument(
            "--warm", action="append", metavar="WHAT", help="adapters: load all adapters before /ready; repeats"
        )
        parser.add_argument(
            "--warm-prompts",
            action="append",
            metavar="FILE",
            help="JSON lines of prompts to compute before /ready; repeats",
        )
        parser.add_argument(
            "--logit-processor",
            action="append",
            dest="logit_processors",
            metavar="NAME",
            help="logit processor of a plugin that requests may name; repeats",
        )
        parser.add_argument(
            "--no-cache",
            action="store_true",
            help="convert and pack at each start (model.cache and adapters.cache: none)",
        )
        parser.add_argument(
            "--no-page", dest="page", action="store_false", default=None, help="no page at / to try the models on"
        )
        self._configure_access(parser.add_argument_group("access"))
        self._configure_limits(parser.add_argument_group("limits"))
        self._configure_observability(parser.add_argument_group("observability"))
        parser.add_argument(
            "--journal", metavar="DIR", help="write accepted calls here, so that streams can be resumed"
        )
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until SIGTERM or Ctrl-C; raises InfengError, also for errors of loading the model."""
        from infeng_core.api import Plugins
        from infeng_serve.defaults import as_served
        from infeng_serve.hookspecs import routes_of
        from infeng_serve.model import Model, load
        from infeng_serve.observability.library_logs import capture_library_logs
        from infeng_serve.observability.process import age
        from infeng_serve.observability.tracing import check
        from infeng_serve.request_observers import request_observers
        from infeng_serve.routes import page, table
        from infeng_serve.server import Server
        from infeng_serve.warm import Warming

        capture_library_logs()
        startup = StartupTimes(age())
        startup.record("imports")
        config, settings = self.configured(arguments)
        loras = [parse_lora(text) for text in arguments.lora]
        keys = keys_of(arguments.api_key, arguments.admin_key, settings.api_keys)
        plugins = Plugins.discover(config)
        config = as_served(config, keys, plugins)
        if settings.otlp_endpoint:
            check(settings.otlp_endpoint)  # fail before the model is loaded

        warming = Warming(settings, keys)

        def loaded() -> Model:
            begin = time.perf_counter()
            model = load(config, settings, loras, plugins=plugins, warming=warming.run, startup=startup)
            if server.grpc_address:
                say(f"gRPC at {server.grpc_address}", to_stderr=True)
            say(f"serving {model.name}, loaded in {time.perf_counter() - begin:.2f} s", to_stderr=True)
            return model

        startup.record("settings")
        server = Server(
            settings,
            loaded,
            keys=keys,
            watch=lambda model: request_observers(model, settings, startup),
            routes=routes_of(plugins, {**table(), **page.routes(settings)}),
            startup=startup,
        )
        if not keys.are_asked_for and not server.is_local:
            _log.warning("every client that reaches this address may call: no API key is set", host=settings.host)
        if not keys.are_asked_for and "*" in settings.cors:
            _log.warning("every page that is open in a browser may call: no API key is set", cors="*")
        say(f"listening at {server.url}, loading {config.model.path}", to_stderr=True)
        server.run(has_signals=True)
        return 0

    def configured(self, arguments: argparse.Namespace) -> tuple[EngineConfig, Settings]:
        """Return the configuration and the server's settings for the arguments; raises UsageError without a model."""
        from infeng_serve.settings import Settings

        names = {field.name for field in dataclasses.fields(Settings)} - {"threads"}
        given = {f"serve__{name}": value for name, value in vars(arguments).items() if name in names}
        more: dict[str, object] = {"model__path": arguments.model, "threads__count": arguments.threads, **given}
        more["adapters__directory"] = arguments.adapters_dir
        if arguments.no_cache:
            more["model__cache"] = more["adapters__cache"] = "none"
        config = config_from(arguments, **more)
        if not config.model.path:
            remedy = f"infeng {arguments.command} MODEL, or set model.path in the manifest"
            raise UsageError("model", "none is named", remedy)
        return config, Settings.read({**self._settings, **config.extra.get("serve", {})})

    def _configure_access(self, group: Options) -> None:
        group.add_argument(
            "--api-key", action="append", default=[], metavar="KEY", help="an API key that callers need; repeats"
        )
        group.add_argument(
            "--admin-key",
            action="append",
            default=[],
            metavar="KEY",
            help="an API key that may load adapters from any path",
        )
        group.add_argument(
            "--api-keys", metavar="FILE", help="file of lines KEY TENANT [ADAPTERS [admin]]; reread when it changes"
        )
        group.add_argument(
            "--lora-root",
            action="append",
            dest="lora_roots",
            metavar="DIR",
            help="folder from which callers may load; repeats",
        )
        group.add_argument("--cors", action="append", metavar="ORIGIN", help="origin whose pages may call; repeats")
        group.add_argument(
            "--allowed-hosts", action="append", metavar="NAME", help="host name to answer to without keys; repeats"
        )
        group.add_argument("--tls-cert", metavar="FILE", help="certificate chain")
        group.add_argument("--tls-key", metavar="FILE", help="its private key")

    def _configure_limits(self, group: Options) -> None:
        group.add_argument(
            "--unknown-parameters",
            choices=("error", "ignore"),
            help="treatment of those that could change an answer (error)",
        )
        group.add_argument("--max-body", type=int, metavar="BYTES", help="largest request body (16 MiB)")
        group.add_argument("--max-connections", type=int, metavar="N", help="most open connections (4096)")
        group.add_argument("--max-requests", type=int, metavar="N", help="most calls that run or wait (1024)")
        group.add_argument("--request-timeout", type=float, metavar="S", help="cut answers off after S seconds (never)")
        group.add_argument(
            "--drain-timeout", type=float, metavar="S", help="seconds for running answers after SIGTERM (30)"
        )

    def _configure_observability(self, group: Options) -> None:
        group.add_argument(
            "--access-log",
            nargs="?",
            const="logfmt",
            metavar="FORMAT",
            help="log a line for each answer: logfmt or json",
        )
        group.add_argument(
            "--otlp-endpoint", metavar="URL", help="send traces to this collector: http://localhost:4317"
        )


def keys_of(given: list[str], admins: list[str], file: str | None) -> Any:
    """Return the keys of the arguments, of INFENG_API_KEY and INFENG_ADMIN_KEY, and of a file."""
    from infeng_serve.auth import Keys

    more, more_admins = os.environ.get("INFENG_API_KEY"), os.environ.get("INFENG_ADMIN_KEY")
    return Keys(
        [*given, *([more] if more else [])], admin_keys=[*admins, *([more_admins] if more_admins else [])], file=file
    )
