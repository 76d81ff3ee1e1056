"""Engine manifests: YAML, environment and arguments become one EngineConfig."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infeng_core.errors import ManifestError, unknown_key_remedy
from infeng_core.files import exists
from infeng_core.settings import yamlfile
from infeng_core.settings.config import OPS, SCHEMA, SECTIONS, EngineConfig, Schema, default_of
from infeng_core.settings.schema import MapOf, checked
from infeng_core.settings.yamlfile import Document

VERSION = 1
SHORT_VARIABLES = {"INFENG_FORCE": "kernels.force", "INFENG_DISABLE": "kernels.disable"}
NO_SETTINGS = {"INFENG_LOG", "INFENG_CACHE", "INFENG_CPU_FEATURES"}

Setting = tuple[str, object, str]  # dotted key, checked value, origin


def assemble(
    manifest: Path | str | None,
    overrides: Mapping[str, object],
    environ: Mapping[str, str],
    more: Callable[[EngineConfig], Schema],
    ops: Callable[[EngineConfig], Collection[str]],
) -> EngineConfig:
    """Return the configuration of ``infeng_core.api.load_config``.

    more: called for the sections of plugins if a section is named that is not the engine's own; its argument says
    which plugins there are. ops: called for the ops of plugins if ``kernels.force`` has one that is not the engine's
    own.
    """
    for name, given in (("overrides", overrides), ("environ", environ)):
        if not isinstance(given, Mapping):
            raise ManifestError(name, f"it is a {type(given).__name__}, not a mapping", "give a dict")
        for key in given:
            if not isinstance(key, str):
                raise ManifestError(name, f"a key is a {type(key).__name__}, not text", "name each by a text")
    document = None if manifest is None else yamlfile.read(find_manifest(manifest))
    schema = SCHEMA
    if _names_more(document, environ, overrides):
        schema = {**SCHEMA, **more(_of_plugins(document, environ, overrides))}
    config = _assemble(schema, document, environ, overrides)
    strange = [op for op in config.kernels.force if op not in OPS]
    known = {*OPS, *ops(config)} if strange else OPS
    for op in strange:
        if op not in known:
            where = config.provenance["kernels.force"]
            raise ManifestError(f"kernels.force.{op} ({where})", "no such operation", unknown_key_remedy(op, known))
    return config


def _assemble(
    schema: Schema, document: Document | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> EngineConfig:
    values: dict[str, object] = {}
    provenance = {f"{section}.{key}": "default" for section, keys in schema.items() for key in keys}
    sources: list[Iterator[Setting]] = [] if document is None else [_from_document(document, schema)]
    sources += [_from_environment(environ, schema), _from_arguments(overrides, schema)]
    for source in sources:
        for dotted, value, origin in source:
            key, _, entry = _split(dotted, schema)
            if entry:
                base = values.get(key, default_of(schema[key.split(".")[0]][key.split(".")[1]]))
                value = {**dict(base), entry: value}  # type: ignore[call-overload]  # maps only, by _split
                for name in value:
                    provenance.setdefault(f"{key}.{name}", provenance[key])
                provenance[dotted] = origin
            else:
                provenance = {name: where for name, where in provenance.items() if not name.startswith(f"{key}.")}
            values[key] = value
            provenance[key] = origin
    return _build(values, provenance)


def _names_more(document: Document | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> bool:
    """Return whether a section is named that is not the engine's own: only then are plugins discovered."""
    sections = {*(document.data if document else ()), *(key.partition(".")[0] for key in overrides)} - {"infeng"}
    known = tuple(f"INFENG_{section.upper()}_" for section in SCHEMA)
    variables = {name for name in environ if name.startswith("INFENG_") and not name.startswith(known)}
    return not sections <= SCHEMA.keys() or not variables <= {*NO_SETTINGS, *SHORT_VARIABLES}


def _of_plugins(document: Document | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> EngineConfig:
    """Return the settings about plugins in general, with defaults otherwise; a missing plugin is reported later."""
    if document is not None:
        kept = {key: value for key, value in document.data.items() if key in ("infeng", "plugins")}
        document = document.replaced(data=kept)
    environ = {name: value for name, value in environ.items() if name.startswith("INFENG_PLUGINS_")}
    overrides = {key: value for key, value in overrides.items() if key.startswith("plugins.")}
    return _assemble(SCHEMA, document, environ, overrides)


def shipped_manifests() -> dict[str, Path]:
    """Return the manifests inside the wheel by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent.parent / "manifests").glob("*.yaml"))}


def find_manifest(manifest: Path | str) -> Path:
    """Return ``manifest`` as a path; the bare name of a shipped manifest means the shipped file."""
    if not isinstance(manifest, (str, Path)):
        why = f"it is a {type(manifest).__name__}"
        raise ManifestError("manifest", why, "give a path, or the name of a shipped one")
    path = Path(manifest)
    if not exists(path) and path.name == str(manifest) and path.stem in shipped_manifests():
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
    extra: dict[str, dict[str, object]] = {}
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        if section not in SECTIONS:
            extra.setdefault(section, {})[key] = value
    for section, cls in SECTIONS.items():
        given = {key: values[f"{section}.{key}"] for key in SCHEMA[section] if f"{section}.{key}" in values}
        sections[section] = cls(**{k: MappingProxyType(v) if isinstance(v, dict) else v for k, v in given.items()})
    return EngineConfig(**sections, extra=MappingProxyType(extra), provenance=MappingProxyType(dict(provenance)))


def _from_document(document: Document, schema: Schema) -> Iterator[Setting]:
    data = document.data
    document.require_version("infeng", VERSION, "manifest version")
    for section, content in data.items():
        if section == "infeng":
            continue
        if section not in schema:
            raise ManifestError(
                document.place((section,)), "unknown key", unknown_key_remedy(section, [*schema, "infeng"])
            )
        kinds = {key: field.metadata["kind"] for key, field in schema[section].items()}
        for key, value in checked(document, (section,), content, kinds).items():
            found = _beside(document.path, value) if schema[section][key].metadata["path"] else value
            yield f"{section}.{key}", found, document.place((section, key)).rsplit(": ", 1)[0]


def _beside(manifest: Path, value: Any) -> Any:
    """Resolve a path relative to its manifest; a missing path (a hub name) stays as it is."""
    if isinstance(value, tuple):
        return tuple(_beside(manifest, item) for item in value)
    if isinstance(value, dict):
        return {name: _beside(manifest, item) for name, item in value.items()}
    if value is None or Path(value).is_absolute():
        return value
    candidate = manifest.parent / value
    return str(candidate) if exists(candidate) else value


def _from_environment(environ: Mapping[str, str], schema: Schema) -> Iterator[Setting]:
    for variable in sorted(environ):
        if not variable.startswith("INFENG_"):
            continue
        if variable in SHORT_VARIABLES:
            dotted = SHORT_VARIABLES[variable]
        else:
            rest = variable.removeprefix("INFENG_").lower()
            words = {re.sub(r"[^a-z0-9]", "_", name.lower()) + "_": name for name in schema}
            word = next((word for word in words if rest.startswith(word)), None)
            if word is None:
                continue  # INFENG_LOG, INFENG_CACHE and variables that plugins read themselves
            dotted = f"{words[word]}.{rest.removeprefix(word)}"
        yield dotted, _read(dotted, environ[variable], f"environment variable {variable}", schema), variable


def _from_arguments(overrides: Mapping[str, object], schema: Schema) -> Iterator[Setting]:
    for dotted, value in overrides.items():
        yield dotted, _read(dotted, value, f"argument {dotted}", schema), "argument"


def _split(dotted: str, schema: Schema) -> tuple[str, Any, str]:
    """Return (setting, its kind, entry of a map or "")."""
    section, _, rest = dotted.partition(".")
    if section not in schema:
        raise KeyError(section)
    key, _, entry = rest.partition(".")
    if key not in schema[section]:
        raise KeyError(key)
    kind = schema[section][key].metadata["kind"]
    if entry and not isinstance(kind, MapOf):
        raise KeyError(rest)
    return f"{section}.{key}", kind.kind if entry else kind, entry


def _read(dotted: str, value: object, where: str, schema: Schema) -> object:
    try:
        _, kind, _ = _split(dotted, schema)
    except KeyError:
        section, _, rest = dotted.partition(".")
        known = schema.get(section)
        remedy = unknown_key_remedy(rest, known) if known else unknown_key_remedy(section, schema)
        raise ManifestError(where, "unknown setting", remedy) from None
    try:
        return kind.parse(value) if isinstance(value, str) else kind.check(value)
    except ValueError as error:
        raise ManifestError(where, str(error)) from None
    except Exception as error:  # from an object of the caller's own, or a number too large for a float
        raise ManifestError(where, f"{type(value).__name__} is no type of a setting ({type(error).__name__})") from None
