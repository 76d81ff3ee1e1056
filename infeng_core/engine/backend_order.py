"""The backend of an engine: the first of ``backend.order`` that can run the model on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from infeng_core.backends.interface import device_of
from infeng_core.errors import InfengError, KernelError, PluginError, ResourceError
from infeng_core.kernels.choice import Selector
from infeng_core.log import get_logger
from infeng_core.plug.hookspecs import BACKENDS

if TYPE_CHECKING:
    from infeng_core.backends.interface import Backend
    from infeng_core.plug.manager import Plugins
    from infeng_core.settings.config import EngineConfig

T = TypeVar("T")
log = get_logger(__name__)


class Candidate(NamedTuple):
    """A backend that is there, and the configuration in which ``backend.use`` names it."""

    config: EngineConfig
    backend: Backend
    selector: Selector | None  # None for a backend without kernels


def names_of(config: EngineConfig) -> tuple[str, ...]:
    """Return the backends to try, in order."""
    return config.backend.order or (config.backend.use,)


def candidate(config: EngineConfig, plugins: Plugins, name: str) -> Candidate:
    """Return the backend ``name``; raises PluginError where it is not installed or has no device here, KernelError
    where a forced kernel does not exist."""
    config = config.replaced(backend=config.backend.replaced(use=name))
    backend: Backend = plugins.get(BACKENDS, name)
    selector = Selector(plugins, config, plugins.cpu, device_of(backend, config)) if backend.uses_kernels else None
    return Candidate(config, backend, selector)


class BackendOrder:
    """The backends of a configuration, each tried when the one before cannot run."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        """Find the first backend that is there; raises the last one's error if none is."""
        self._tried = self._candidates(config, plugins)
        self.first = next(self._tried)

    def run(self, compiled: Callable[[Candidate], T]) -> tuple[Candidate, T]:
        """Return the first backend for which ``compiled`` returns a result, and the result.

        One that raises ResourceError, such as a device without room for the model, is passed over. Raises the last
        backend's error.
        """
        current = self.first
        while True:
            try:
                return current, compiled(current)
            except ResourceError as error:
                following = next(self._tried, None)
                if following is None:
                    raise
                _note(current.config.backend.use, error)
                current = following

    def _candidates(self, config: EngineConfig, plugins: Plugins) -> Iterator[Candidate]:
        names = names_of(config)
        for name in names:
            try:
                found = candidate(config, plugins, name)
            except (PluginError, KernelError) as error:
                if name == names[-1]:
                    raise
                _note(name, error)
            else:
                yield found


def _note(name: str, error: InfengError) -> None:
    log.warning("backend is passed over", backend=name, reason=error.why, remedy=error.remedy)
