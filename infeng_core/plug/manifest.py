"""Engine manifests: YAML, environment and arguments become one EngineConfig."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infeng_core.errors import ManifestError, unknown_key_remedy
from infeng_core.plug import yamlfile
from infeng_core.plug.config import OPS, SCHEMA, SECTIONS, EngineConfig
from infeng_core.plug.schema import MapOf
from infeng_core.plug.yamlfile import Document, type_name

__all__ = ["EngineConfig", "default_manifest", "load_config", "parse_assignment", "shipped_manifests"]

VERSION = 1
SHORT_VARIABLES = {"INFENG_FORCE": "kernels.force", "INFENG_DISABLE": "kernels.disable"}

Setting = tuple[str, object, str]  # dotted key, checked value, where from


def load_config(
    manifest: Path | str | None = None,
    *,
    overrides: Mapping[str, object] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
) -> EngineConfig:
    """Assemble a configuration: argument > ``INFENG_*`` environment > manifest > default.

    ``overrides`` maps dotted keys to values; text is read as the key's type demands (``{"threads.count": "2"}``), and
    an entry of a map may be set alone (``{"kernels.force.linear": "avx512"}``). A manifest that is no file but the name
    of a shipped one (``"portable"``) means that one. Raises ManifestError naming file, line, key, reason and remedy.
    """
    values: dict[str, object] = {}
    provenance = {f"{section}.{key}": "default" for section, keys in SCHEMA.items() for key in keys}
    sources: list[Iterator[Setting]] = []
    if manifest is not None:
        sources.append(_from_document(yamlfile.read(find_manifest(manifest))))
    sources += [_from_environment(environ), _from_arguments(overrides)]
    for source in sources:
        for dotted, value, origin in source:
            key, _, entry = _split(dotted)
            if entry:
                base = values.get(key, getattr(getattr(EngineConfig(), key.split(".")[0]), key.split(".")[1]))
                value = {**dict(base), entry: value}  # type: ignore[call-overload]  # maps only, by _split
                for name in value:
                    provenance.setdefault(f"{key}.{name}", provenance[key])
                provenance[dotted] = origin
            else:
                provenance = {name: where for name, where in provenance.items() if not name.startswith(f"{key}.")}
            values[key] = value
            provenance[key] = origin
    config = _build(values, provenance)
    for op in config.kernels.force:
        if op not in OPS:
            where = provenance["kernels.force"]
            raise ManifestError(f"kernels.force.{op} ({where})", "no such operation", unknown_key_remedy(op, OPS))
    return config


def shipped_manifests() -> dict[str, Path]:
    """Return the manifests inside the wheel by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent.parent / "manifests").glob("*.yaml"))}


def default_manifest() -> Path:
    """Return the file that spells out the defaults."""
    return shipped_manifests()["default"]


def find_manifest(manifest: Path | str) -> Path:
    """Return ``manifest`` as a path; the bare name of a shipped manifest means the shipped file."""
    path = Path(manifest)
    if not path.exists() and path.name == str(manifest) and path.stem in shipped_manifests():
        return shipped_manifests()[path.stem]
    return path


def parse_assignment(text: str) -> tuple[str, str]:
    """Split ``key.sub=value``, the form of ``--set``."""
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ManifestError(f"--set {text}", "not an assignment", "write --set section.key=value")
    return key.strip(), value


def _build(values: Mapping[str, object], provenance: Mapping[str, str]) -> EngineConfig:
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        given = {key: values[f"{section}.{key}"] for key in SCHEMA[section] if f"{section}.{key}" in values}
        sections[section] = cls(**{k: MappingProxyType(v) if isinstance(v, dict) else v for k, v in given.items()})
    return EngineConfig(**sections, provenance=MappingProxyType(dict(provenance)))


def _from_document(document: Document) -> Iterator[Setting]:
    data = document.data
    if data.get("infeng") != VERSION or isinstance(data.get("infeng"), bool):
        remedy = f"start the file with `infeng: {VERSION}`"
        raise ManifestError(document.place(("infeng",)), f"expected {VERSION}, the manifest version", remedy)
    for section, content in data.items():
        if section == "infeng":
            continue
        if section not in SCHEMA:
            raise ManifestError(
                document.place((section,)), "unknown key", unknown_key_remedy(section, [*SCHEMA, "infeng"])
            )
        if content is None:
            continue
        if not isinstance(content, dict):
            raise ManifestError(document.place((section,)), f"expected keys and values, found {type_name(content)}")
        for key, value in content.items():
            place = document.place((section, key))
            if key not in SCHEMA[section]:
                raise ManifestError(place, "unknown key", unknown_key_remedy(key, SCHEMA[section]))
            field = SCHEMA[section][key]
            try:
                checked = field.metadata["kind"].check(value)
            except ValueError as error:
                raise ManifestError(place, str(error)) from None
            if field.metadata["path"]:
                checked = _beside(document.path, checked)
            yield f"{section}.{key}", checked, place.rsplit(": ", 1)[0]


def _beside(manifest: Path, value: Any) -> Any:
    """Resolve a path relative to its manifest; what is not there (a hub name) stays as it is."""
    if isinstance(value, tuple):
        return tuple(_beside(manifest, item) for item in value)
    if isinstance(value, dict):
        return {name: _beside(manifest, item) for name, item in value.items()}
    if value is None or Path(value).is_absolute():
        return value
    candidate = manifest.parent / value
    return str(candidate) if candidate.exists() else value


def _from_environment(environ: Mapping[str, str]) -> Iterator[Setting]:
    for variable in sorted(environ):
        if not variable.startswith("INFENG_"):
            continue
        if variable in SHORT_VARIABLES:
            dotted = SHORT_VARIABLES[variable]
        else:
            rest = variable.removeprefix("INFENG_").lower()
            section = next((name for name in SCHEMA if rest.startswith(name + "_")), None)
            if section is None:
                continue  # INFENG_LOG, INFENG_CACHE and what plugins read on their own
            dotted = f"{section}.{rest.removeprefix(section + '_')}"
        yield dotted, _read(dotted, environ[variable], f"environment variable {variable}"), variable


def _from_arguments(overrides: Mapping[str, object]) -> Iterator[Setting]:
    for dotted, value in overrides.items():
        yield dotted, _read(dotted, value, f"argument {dotted}"), "argument"


def _split(dotted: str) -> tuple[str, Any, str]:
    """Return (setting, its kind, entry of a map or "")."""
    section, _, rest = dotted.partition(".")
    if section not in SCHEMA:
        raise KeyError(section)
    key, _, entry = rest.partition(".")
    if key not in SCHEMA[section]:
        raise KeyError(key)
    kind = SCHEMA[section][key].metadata["kind"]
    if entry and not isinstance(kind, MapOf):
        raise KeyError(rest)
    return f"{section}.{key}", kind.kind if entry else kind, entry


def _read(dotted: str, value: object, where: str) -> object:
    try:
        _, kind, _ = _split(dotted)
    except KeyError:
        section, _, rest = dotted.partition(".")
        known = SCHEMA.get(section)
        remedy = unknown_key_remedy(rest, known) if known else unknown_key_remedy(section, SCHEMA)
        raise ManifestError(where, "unknown setting", remedy) from None
    try:
        return kind.parse(value) if isinstance(value, str) else kind.check(value)
    except ValueError as error:
        raise ManifestError(where, str(error)) from None
