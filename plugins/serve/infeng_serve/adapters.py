"""Adapters as callers see them: whose they are, what they are called, and from where they may be loaded."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from infeng_core.api import BASE, AdapterError, Adapters, Engine, RequestError, ResourceError
from infeng_serve.auth import Caller
from infeng_serve.protocol.errors import ApiError, unavailable

MOST_OWN = 1024
"""Adapters that one tenant may have loaded."""

MOST_NAME = 117
"""Characters of an adapter's name: the engine's own name of it has 11 more, and 128 at most."""

Mix = tuple[tuple[str, float], ...]
"""Adapters of the engine that a tenant has laid on the base model, with their weights."""


class AdapterNames:
    """The adapters of an engine by the names that callers know.

    The operator's are everybody's, as far as a key says so. What a tenant loads is its own: it has a name of its own in
    the engine, so that two tenants may give one name to different adapters, and neither learns of the other.
    """

    def __init__(
        self, engine: Engine, base: Collection[str], *, roots: Iterable[str] = (), share: bool = False
    ) -> None:
        """Take the adapters that the engine has for the operator's.

        base: names of the model without any. roots: folders from which tenants may load. share: what they load is
        everybody's.
        """
        self._engine = engine
        self._base = frozenset({*base, BASE})
        self._roots = [Path(root).expanduser().resolve() for root in roots]
        self._share = share
        self._lock = threading.Lock()
        self._shared = {name: name for name in engine.adapters}
        self._own: dict[str, dict[str, str]] = {}
        self._mixes: dict[str, Mix] = {}

    # ---------------------------------------------------------------------------------------------- who sees what ---

    def visible(self, caller: Caller) -> dict[str, str]:
        """Return the names that a caller may ask for, and what the engine calls each; its own go first."""
        own = self._own.get(caller.tenant, {})
        found = {name: inner for name, inner in self._shared.items() if self._may_see(caller, name)} | own
        if caller.sees_all:
            for others in list(self._own.values()):
                found = {**others, **found}
        return found

    def of(self, caller: Caller, model: str) -> Adapters | None:
        """Return the adapter that ``model`` means to a caller, None for the base model; raises ApiError 404."""
        if model in self._base:
            return self._mixes.get(caller.tenant) or None
        inner = self._own.get(caller.tenant, {}).get(model)
        if inner is None and model in self._shared and self._may_see(caller, model):
            inner = self._shared[model]
        if inner is None and caller.sees_all:
            inner = self.visible(caller).get(model)
        if inner is None:
            why = f"The model {model[:200]!r} does not exist, or this key may not use it; GET /v1/models lists all."
            raise ApiError(404, why, param="model", code="model_not_found")
        return inner

    @staticmethod
    def _may_see(caller: Caller, name: str) -> bool:
        return caller.adapters is None or name in caller.adapters

    # -------------------------------------------------------------------------------------------------- loading ---

    def load(self, caller: Caller, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter for a caller, an admin's for everybody. Blocks while its files are read.

        replace: read the files of one that is there again. Raises ApiError.
        """
        if len(name) > MOST_NAME:
            raise ApiError(400, f"lora_name has more than {MOST_NAME} characters.", param="lora_name")
        source = self._source(caller, path)
        is_shared = caller.is_admin or self._share or not caller.tenant
        with self._lock:
            known = self._shared if is_shared else self._own.setdefault(caller.tenant, {})
            is_there = name in known
            if is_there and replace:
                with _told(caller, {source: path, known[name]: name}):
                    self._engine.adapters.reload(known[name])
                return
            if is_there or name in self._base or name in self.visible(caller):
                raise ApiError(400, f"The lora adapter '{name}' has already been loaded.", param="lora_name")
            if not is_shared and len(known) >= MOST_OWN:
                raise ApiError(400, f"There are {MOST_OWN} adapters of this key; unload one.", param="lora_name")
            inner = name if is_shared else inner_name(name, caller.tenant)
            with _told(caller, {source: path, inner: name}):
                self._engine.adapters.load(inner, source, pin=True)  # so that a broken one is told now
            self._engine.adapters.pin(inner, False)
            known[name] = inner

    def unload(self, caller: Caller, name: str) -> None:
        """Forget an adapter of a caller's own, or for an admin, anybody's; raises ApiError 404 or 403."""
        with self._lock:
            known = self._own.get(caller.tenant, {})
            if name not in known and name in self.visible(caller):
                if not (caller.is_admin or self._share or not caller.tenant):
                    raise ApiError(403, f"The lora adapter '{name}' was not loaded with this key.", param="lora_name")
                known = self._shared if name in self._shared else self._owner(name)
            if name not in known:
                raise ApiError(404, f"The lora adapter '{name}' cannot be found.", param="lora_name", code="not_found")
            inner = known.pop(name)
            self._mixes = {
                tenant: mix for tenant, mix in self._mixes.items() if all(adapter != inner for adapter, _ in mix)
            }
            self._engine.adapters.unload(inner)

    def _owner(self, name: str) -> dict[str, str]:
        return next(names for names in self._own.values() if name in names)

    def _source(self, caller: Caller, path: str) -> str:
        """Return what may be loaded: anything for an admin, for others what lies in one of the folders."""
        if not path.strip():
            raise ApiError(400, "lora_path is empty; name a directory.", param="lora_path")
        if caller.is_admin:
            return path
        for root in self._roots:
            try:
                found = (root / path).resolve()
                if found.is_relative_to(root) and found.exists():
                    return str(found)
            except (OSError, ValueError, RuntimeError):  # too long, a NUL, links in a circle
                continue
        why = "Adapters are loaded from the folders that the server was given (--lora-root), or with an admin's key."
        raise ApiError(403, why, type="permission_error", param="lora_path")

    # --------------------------------------------------------------------------------- what the base is mixed with ---

    def mix(self, caller: Caller) -> Mapping[str, float]:
        """Return the weights of adapters, by the engine's names, that a caller has laid on the base model."""
        return dict(self._mixes.get(caller.tenant, ()))

    def set_mix(self, caller: Caller, weights: Mapping[str, float]) -> None:
        """Lay adapters on the base model, by the engine's names, for the calls of one tenant alone.

        Blocks while files are read. Raises ApiError for weights with which those calls could not be answered.
        """
        mix = tuple((inner, weight) for inner, weight in weights.items() if weight)
        try:
            if mix:
                self._engine.check_adapters(mix)
        except (AdapterError, RequestError) as error:
            raise ApiError(400, str(error), param="scale") from error
        except ResourceError as error:
            raise unavailable(str(error), 1.0, code="no_resources") from error
        with self._lock:
            self._mixes = {**self._mixes, caller.tenant: mix}


def inner_name(name: str, tenant: str) -> str:
    """Return what the engine calls an adapter that a tenant has loaded; no client hears of it."""
    return f"{name}.{_mark(tenant)}"


def told_name(inner: str, tenant: str) -> str:
    """Return what a tenant calls the adapter that the engine calls ``inner``."""
    return inner.removesuffix(f".{_mark(tenant)}")


def _mark(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode(), digest_size=5).hexdigest()


@contextlib.contextmanager
def _told(caller: Caller, said: Mapping[str, str]) -> Iterator[None]:
    """Raise what goes wrong with an adapter as an ApiError, to all but admins in the words of ``said``.

    said: what only the server knows, and what the client calls it.
    """
    try:
        yield
    except AdapterError as error:
        text = str(error)
        for inside, outside in () if caller.is_admin else said.items():
            text = text.replace(inside, outside)
        raise ApiError(400, text, param="lora_path") from error
    except ResourceError as error:
        raise unavailable(str(error), 1.0, code="no_resources") from error
