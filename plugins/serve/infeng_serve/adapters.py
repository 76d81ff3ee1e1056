"""Adapters as callers see them: their owners, their names, and the folders they may be loaded from."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from infeng_core.api import BASE, AdapterError, Adapters, Engine, RequestError, ResourceError
from infeng_serve.auth import Caller
from infeng_serve.protocol.errors import ApiError, unavailable

MOST_OWN = 1024
"""Most adapters that one tenant may load."""

LISTED_AT_A_TIME = 1000
"""Names of ``adapters.directory`` that are looked at together."""

MOST_NAME = 117
"""Most characters of an adapter's name: the engine's name for it has 11 more, and at most 128."""

Mix = tuple[tuple[str, float], ...]
"""Adapters that a tenant merged into the base model, by the engine's names, with their weights."""


class AdapterNames:
    """The adapters of an engine by the names that callers know.

    The operator's adapters are visible to every key that allows them: those that the engine has at the start, and those
    of ``adapters.directory``, which are looked up when a call names them. An adapter that a tenant loads is visible to
    that tenant alone and gets a unique name in the engine, so two tenants may use one name for different adapters.
    """

    def __init__(
        self, engine: Engine, base: Collection[str], *, roots: Iterable[str] = (), share: bool = False
    ) -> None:
        """Treat the adapters that the engine has now as the operator's.

        base: names of the base model. roots: folders from which tenants may load. share: adapters that tenants load are
        visible to all.
        """
        self._engine = engine
        self._base = frozenset({*base, BASE})
        self._roots = [Path(root).expanduser().resolve() for root in roots]
        self._share = share
        self._lock = threading.Lock()
        self._shared = {name: name for name in engine.adapters}
        self._own: dict[str, dict[str, str]] = {}
        self._mixes: dict[str, Mix] = {}

    # ------------------------------------------------------------------------------------------------- visibility ---

    def visible(self, caller: Caller) -> dict[str, str]:
        """Return the names that a caller may use, with the engine's name of each; its own adapters take precedence.

        Adapters of ``adapters.directory`` are not among them: ``in_directory``.
        """
        own = self._own.get(caller.tenant, {})
        found = {name: inner for name, inner in self._shared.items() if self._may_see(caller, name)} | own
        if caller.sees_all:
            for others in list(self._own.values()):
                found = {**others, **found}
        return found

    def listed(self, caller: Caller, after: str, most: int) -> tuple[list[tuple[str, str]], bool]:
        """Return the next adapters that a caller may use, with the engine's name of each, and whether there are more.

        Adapters that were loaded come in their order, then those of ``adapters.directory`` in that of their names.
        after: the last name that was listed before; "": none was, or one of the base. most: at least 1. Raises
        ApiError 400 for a name after which nothing is listed.
        """
        loaded = list(self.visible(caller).items())
        names = {name: place for place, (name, _) in enumerate(loaded)}
        if after in names:
            loaded, after = loaded[names[after] + 1 :], ""
        elif after:
            if not self._is_found(caller, after):
                raise ApiError(400, f"There is no model {after[:200]!r} after which models are listed.", param="after")
            loaded = []
        rest = (name for name in self._in_directory(caller, after) if name not in self._base and name not in names)
        found = list(islice(chain(loaded, ((name, name) for name in rest)), most + 1))
        return found[:most], len(found) > most

    def _in_directory(self, caller: Caller, after: str) -> Iterator[str]:
        """Yield the names of ``adapters.directory`` that a caller may use, from the first one after ``after``."""
        if caller.adapters is not None:  # a few names, perhaps of a hundred thousand
            allowed = (name for name in sorted(caller.adapters) if name > after)
            yield from filter(self._engine.adapters.is_available, allowed)
            return
        while more := self._engine.adapters.available(after, LISTED_AT_A_TIME):
            yield from more
            after = more[-1]

    def of(self, caller: Caller, model: str) -> Adapters | None:
        """Return the adapter that ``model`` means to a caller, None for the base model; raises ApiError 404."""
        if model in self._base:
            return self._mixes.get(caller.tenant) or None
        inner = self._own.get(caller.tenant, {}).get(model)
        if inner is None and model in self._shared and self._may_see(caller, model):
            inner = self._shared[model]
        if inner is None and caller.sees_all:
            inner = self.visible(caller).get(model)
        if inner is None and self._is_found(caller, model):
            inner = model
        if inner is None:
            why = f"The model {model[:200]!r} does not exist, or this key may not use it; GET /v1/models lists all."
            raise ApiError(404, why, param="model", code="model_not_found")
        return inner

    def _is_found(self, caller: Caller, name: str) -> bool:
        """Return whether ``adapters.directory`` has an adapter that a caller may use."""
        return self._is_shown(caller, name) and self._engine.adapters.is_available(name)

    def _is_shown(self, caller: Caller, name: str) -> bool:
        return name not in self._base and self._may_see(caller, name)

    @staticmethod
    def _may_see(caller: Caller, name: str) -> bool:
        return caller.adapters is None or name in caller.adapters

    # -------------------------------------------------------------------------------------------------- loading ---

    def load(self, caller: Caller, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter for a caller; one that an admin loads is for all. Blocks while its files are read.

        replace: if the name is loaded already, read the files of ``path`` in its place, or with "" its own again.
        Raises ApiError.
        """
        if len(name) > MOST_NAME:
            raise ApiError(400, f"lora_name has more than {MOST_NAME} characters.", param="lora_name")
        is_shared = caller.is_admin or self._share or not caller.tenant
        with self._lock:
            known = self._shared if is_shared else self._own.setdefault(caller.tenant, {})
            is_there = name in known
            if is_there and replace:
                self._reload(caller, name, known[name], path)
                return
            source = self._source(caller, path)
            is_taken = name in self._base or name in self.visible(caller) or self._engine.adapters.is_available(name)
            if is_there or is_taken:
                raise ApiError(400, f"The lora adapter '{name}' has already been loaded.", param="lora_name")
            if not is_shared and len(known) >= MOST_OWN:
                raise ApiError(400, f"There are {MOST_OWN} adapters of this key; unload one.", param="lora_name")
            inner = name if is_shared else inner_name(name, caller.tenant)
            with _told(caller, {source: path, inner: name}):
                self._engine.adapters.load(inner, source, pin=True)  # a broken adapter is reported now
            self._engine.adapters.pin(inner, False)
            known[name] = inner

    def _reload(self, caller: Caller, name: str, inner: str, path: str) -> None:
        present = self._engine.adapters[inner].source
        source = self._source(caller, path or present)  # its own one may lead elsewhere by now
        with _told(caller, {source: path or name, present: name, inner: name}):
            self._engine.adapters.reload(inner, None if source == present else source)

    def unload(self, caller: Caller, name: str) -> None:
        """Unload an adapter of the caller, or for an admin, of any tenant; raises ApiError 404 or 403."""
        with self._lock:
            known = self._own.get(caller.tenant, {})
            if name not in known and name in self.visible(caller):
                if not (caller.is_admin or self._share or not caller.tenant):
                    raise ApiError(403, f"The lora adapter '{name}' was not loaded with this key.", param="lora_name")
                known = self._shared if name in self._shared else self._owner(name)
            if name not in known and self._is_found(caller, name):
                why = f"The lora adapter '{name}' is one of the server's folder of adapters; it is removed there."
                raise ApiError(403, why, type="permission_error", param="lora_name")
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
        """Return the path to load: any path for an admin, for others a path within one of the folders."""
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

    # ------------------------------------------------------------------------- adapters merged into the base model ---

    def mix(self, caller: Caller) -> Mapping[str, float]:
        """Return the adapters that a caller's tenant merged into the base model: weights by the engine's names."""
        return dict(self._mixes.get(caller.tenant, ()))

    def set_mix(self, caller: Caller, weights: Mapping[str, float]) -> None:
        """Merge adapters into the base model, by the engine's names, for the calls of one tenant alone.

        Blocks while files are read. Raises ApiError for weights that the engine refuses.
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
    """Return the engine's name for an adapter that a tenant loads; clients never see it."""
    return f"{name}.{_mark(tenant)}"


def told_name(inner: str, tenant: str) -> str:
    """Return a tenant's name for the adapter that the engine calls ``inner``."""
    return inner.removesuffix(f".{_mark(tenant)}")


def _mark(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode(), digest_size=5).hexdigest()


@contextlib.contextmanager
def _told(caller: Caller, said: Mapping[str, str]) -> Iterator[None]:
    """Turn an error of an adapter into an ApiError; for callers other than admins, texts in ``said`` are replaced.

    said: texts that only the server may know, with the client's words for them.
    """
    try:
        yield
    except AdapterError as error:
        text = str(error)
        for inside, outside in () if caller.is_admin else said.items():
            text = text.replace(inside, outside)
        param = "lora_name" if text.startswith("adapter name ") else "lora_path"
        raise ApiError(400, text, param=param) from error
    except ResourceError as error:
        raise unavailable(str(error), 1.0, code="no_resources") from error
