"""The application on Ray Serve: its replicas, which enter their addresses in a directory. Needs Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from infeng_core.api import ResourceError
from infeng_ray.autoscale import Policy
from infeng_ray.directory import Directory
from infeng_ray.fleet import ANSWER_SECONDS, State, state_request
from infeng_ray.process import Plan, ServerProcess
from infeng_ray.upstream import LostError, Pool

ENTER_SECONDS = 2.0
"""Seconds between two entries of a replica in the directory."""


class Replica:
    """One replica: it starts a server, enters its address, and says how it is."""

    def __init__(self, plan: Plan, directory: Any) -> None:
        """Return once the server serves."""
        if plan.host == NODE:
            plan = Plan(**{**vars(plan), "host": ray.util.get_node_ip_address()})
        self._plan, self._directory = plan, directory
        self._name = uuid.uuid4().hex[:12]
        self._server = ServerProcess(plan)
        self._pool = Pool(self._server.url)
        self._is_leaving = threading.Event()
        ray.get(directory.enter.remote(self._name, self._server.url))
        threading.Thread(target=self._enter, name="infeng-enter", daemon=True).start()

    def __call__(self) -> str:
        """Return the server's address."""
        return self._server.url

    def check_health(self) -> None:
        """Raise if the server has ended, so that Ray starts another replica."""
        if not self._is_leaving.is_set():
            self._server.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the requests that wait and run here."""
        request = state_request(self._pool.authority, self._plan.token.encode("ascii"))
        with contextlib.suppress(LostError, msgspec.MsgspecError):
            head, body = await self._pool.fetch(request, ANSWER_SECONDS)
            if head.status == 200:
                state = msgspec.json.decode(body, type=State)
                return {"waiting": float(state.waiting), "running": float(state.running)}
        return {"waiting": 0.0, "running": 0.0}

    async def __del__(self) -> None:
        """Drain: the gateway sends no more calls, and running answers end."""
        server = getattr(self, "_server", None)
        if server is not None and not self._is_leaving.is_set():
            self._is_leaving.set()
            with contextlib.suppress(Exception):  # the directory may be gone already
                self._directory.leave.remote(self._name)
            await asyncio.to_thread(server.drain)

    def _enter(self) -> None:
        while not self._is_leaving.wait(ENTER_SECONDS):
            with contextlib.suppress(Exception):  # Ray may be shutting down
                ray.get(self._directory.enter.remote(self._name, self._server.url), timeout=ENTER_SECONDS)


NODE = "node"
"""As a plan's host: the address of the machine that the replica is on."""


@dataclass(frozen=True)
class Scale:
    """How many replicas, and how soon that changes."""

    low: int
    high: int
    up_seconds: float
    down_seconds: float
    places: int
    """Requests that a replica runs at a time."""


class Application:
    """The application while it runs."""

    def __init__(self, plan: Plan, scale: Scale, address: str | None) -> None:
        """Start or join Ray; raises ResourceError."""
        self._plan, self._scale = plan, scale
        given: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            ray.init(logging_level="warning", log_to_driver=False, namespace="infeng", **given)
            self._directory: Any = ray.remote(Directory).options(num_cpus=0).remote()
        except Exception as error:
            raise ResourceError("Ray", f"it does not start: {error}", "see `ray status`") from error

    def deploy(self) -> None:
        """Start the replicas and return once the fewest of them serve; raises ResourceError."""
        scale = self._scale
        sizes: dict[str, Any] = {"num_replicas": scale.low}
        if scale.high > scale.low:
            policy = AutoscalingPolicy(policy_function=Policy, policy_kwargs={"places": scale.places})
            sizes = {
                "autoscaling_config": AutoscalingConfig(
                    min_replicas=scale.low,
                    max_replicas=scale.high,
                    initial_replicas=scale.low,
                    metrics_interval_s=0.5,
                    look_back_period_s=2.0,
                    upscale_delay_s=scale.up_seconds,
                    downscale_delay_s=scale.down_seconds,
                    policy=policy,
                )
            }
        made = serve.deployment(
            Replica,
            name="replica",
            ray_actor_options={"num_cpus": self._plan.cores},
            health_check_period_s=1.0,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=self._plan.drain_seconds + 20,
            **sizes,
        )
        try:
            serve.start(http_options={"location": "NoServer"})
            serve.run(made.bind(self._plan, self._directory), name=self._plan.app, route_prefix=None)
        except Exception as error:
            raise ResourceError("the replicas", f"they do not start: {error}", "see Ray's logs") from error

    async def members(self) -> Mapping[str, str]:
        """Return the URLs of the replicas by name."""
        found: dict[str, str] = await self._directory.members.remote()
        return found

    def close(self) -> None:
        """Drain all replicas and leave Ray."""
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
