"""``infeng models``: lists supported models, and describes files and directories with their memory needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_convert.cli.model_adapters import inspect_adapters
from infeng_core.api import (
    BACKENDS,
    InfengError,
    KernelError,
    Plugins,
    add_config_options,
    available_bytes,
    config_from,
    say,
)
from infeng_core.api.formats import gigabytes

if TYPE_CHECKING:
    from infeng_convert.survey import Survey
    from infeng_core.api import EngineConfig
    from infeng_core.api.engines import Backend


LIBRARY, GROWTH = 8 << 20, 10
"""Approximate bytes of the tokenizers library, and per byte of a tokenizer.json."""

ENGINE = 8 << 20
"""Approximate bytes of an engine's plan, threads, tables, and unused parts of huge pages."""


class Models:
    """``infeng models [PATH...]``."""

    name = "models"
    help = "list supported models, or describe files and directories and the memory they need"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        text = "a model, an adapter, a folder of them, or a hub name, of which only the configuration is downloaded"
        text += "; without one, families and formats are listed"
        parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help=text)
        parser.add_argument(
            "--base", metavar="MODEL", help="describe adapters instead, and whether each fits this model"
        )
        parser.add_argument("--format", metavar="F", help="weight format for the sizes")
        parser.add_argument("--json", action="store_true", help="for machines")
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report; the status is 1 if a path given by name cannot be run."""
        from infeng_convert.survey import readable
        from infeng_core.api.formats import use_families

        config = config_from(arguments, model__format=arguments.format)
        plugins = Plugins.discover(config)
        use_families(plugins)
        if arguments.base is not None:
            return inspect_adapters(arguments.paths, arguments.base, config, plugins, as_json=arguments.json)
        if not arguments.paths:
            known = readable(plugins)
            print(json.dumps(known, indent=2)) if arguments.json else say(*_listing(known))
            return 0
        found = list(_found(arguments.paths, config, plugins))
        if arguments.json:
            print(json.dumps([facts for facts, _ in found], indent=2))
        else:
            say(*(line for facts, _ in found for line in _report(facts)))
        return int(any(facts["why_not"] and is_named for facts, is_named in found))


def _found(paths: Iterable[Path], config: EngineConfig, plugins: Plugins) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield each model with its needs, and whether it was named itself or found in a folder."""
    from infeng_convert.survey import models_below, survey
    from infeng_core.api.formats import choose, format_lookup, locate

    lookup = format_lookup(plugins)
    choice = choose(config, lookup)
    with closing(_Sizes(config, plugins)) as sizes:
        for path in (path.expanduser() for path in paths):
            found = None if path.exists() else locate(str(path), plugins, "configuration")
            for one in models_below(found or path, plugins):
                needs_weights = found is None or found.is_file()
                made = survey(one, choice, lookup, needs_weights=needs_weights, plugins=plugins)
                yield sizes.facts(made), one == (found or path)


def _listing(known: Mapping[str, Any]) -> Iterator[str]:
    yield "families"
    for name, architectures in known["families"].items():
        yield f"  {name:14} {', '.join(architectures)}"
    yield "files"
    yield f"  safetensors    Hugging Face directories and hub names: {', '.join(known['safetensors'])}"
    yield f"  quantized      the same by {', '.join(known['quantized'])}"
    for name in known["readers"]:
        supports = (", ".join(words) for words in known.get(name, {}).values())
        yield f"  {name:14} {': '.join(supports)}".rstrip()
    yield "weight formats"
    yield f"  {', '.join(known['formats'])}"


class _Sizes:
    """The memory that an engine of a configuration needs for models. Kernels are looked up once, at first use."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        from infeng_core.api.engines import device_of
        from infeng_core.api.kernels import Selector

        self._config, self._plugins = config, plugins
        self._backend = plugins.get(BACKENDS, config.backend.use)
        self._selector = None
        if self._backend.uses_kernels:
            self._selector = Selector(plugins, config, plugins.cpu, device_of(self._backend, config))
        self._own: int | None = None  # bytes of this process, once measured

    def facts(self, made: Survey) -> dict[str, Any]:
        """Return a survey as plain data, with all bytes that the engine needs."""
        needs: dict[str, int] = {}
        if made.config is not None:
            try:
                needs = self._needs(made)
            except InfengError as error:
                made = made if made.why_not else replace(made, why_not=str(error))
        facts = {key: value for key, value in vars(made).items() if key not in ("path", "config", "format_of")}
        facts |= {"path": str(made.path), "formats": made.formats, "has_tokenizer": made.has_tokenizer}
        facts |= {"available_bytes": available_bytes()}
        if made.config is not None:
            facts |= {"family": made.config.family, "context": made.config.max_positions}
            try:
                facts |= _cache_facts(made, self._backend, self._config)
            except KernelError:  # from the requested cache, which is then the reason
                facts |= dict.fromkeys(_CACHE, 0)
        return facts | needs

    def _needs(self, made: Survey) -> dict[str, int]:
        """Return the bytes of cache, scratch and process, and their sum; raises an InfengError if it cannot run."""
        from infeng_inspect.api import Outline

        from infeng_core.api.engines import limits_of
        from infeng_core.api.formats import format_lookup

        shape, config = made.config, self._config
        assert shape is not None
        limits, _ = limits_of(config, shape, self._backend, made.weight_bytes if config.model.load == "copy" else 0)
        scratch = 0
        if self._selector is not None:
            lookup = format_lookup(self._plugins)
            scratch = Outline(shape, made.format_of, lookup, config, self._selector, limits).scratch_bytes()
        cache = limits.kv_blocks * self._backend.block_bytes(shape, config)
        process = self._process_bytes() + (LIBRARY + GROWTH * made.tokenizer_bytes if made.has_tokenizer else 0)
        parts = {"kv_bytes": cache, "scratch_bytes": scratch, "process_bytes": process}
        return {"kv_tokens": limits.tokens, **parts, "memory_bytes": made.weight_bytes + sum(parts.values())}

    def _process_bytes(self) -> int:
        """Return the bytes of a process that runs an engine, without its model: this process with its loaded
        modules."""
        if self._own is None:
            from infeng_inspect.api import footprint

            found = footprint()
            self._own = ENGINE + (0 if found is None else found.total)
        return self._own

    def close(self) -> None:
        """End the processes that tried kernels."""
        if self._selector is not None:
            self._selector.close()


_CACHE = ("cache_bytes_per_token", "cache_bytes_per_token_behind_window", "cache_window", "cache_bytes")


def _cache_facts(made: Survey, backend: Backend, config: EngineConfig) -> dict[str, int]:
    """Return the cache bytes per token, per token beyond all windows, and per full context."""
    from infeng_core.api.engines import BLOCK_TOKENS, Needs, windows_of

    shape = made.config
    assert shape is not None
    needs = Needs(windows_of(backend, shape, config), config.scheduler.max_batch_tokens)
    block = backend.block_bytes(shape, config)
    return {
        "cache_bytes_per_token": needs.groups * block // BLOCK_TOKENS,
        "cache_bytes_per_token_behind_window": needs.wide * block // BLOCK_TOKENS,
        "cache_window": needs.window,
        "cache_bytes": needs.most(shape.max_positions) * block,
    }


def _report(facts: Mapping[str, Any]) -> Iterator[str]:
    yield facts["path"]
    if "family" in facts:
        kind = f"{facts['kind']}{', quantized by ' if facts['method'] else ''}{facts['method']}"
        active = facts["active_parameters"]
        of_them = f", {_count(active)} of them active" if active < facts["parameters"] else ""
        yield f"  model      {kind}, {facts['family']}, {_count(facts['parameters'])} parameters{of_them}"
        stored = ", ".join(f"{name} x {count}" for name, count in facts["stored"].items())
        yield f"  stored     {stored or 'no weights here'}"
        template = "" if facts["has_template"] else ", no chat template"
        yield f"  tokenizer  {'yes' if facts['has_tokenizer'] else 'NONE: prompts are token ids'}{template}"
        shown = "; ".join(f"{format}: {', '.join(names)}" for format, names in facts["formats"].items())
        yield f"  weights    {gigabytes(facts['weight_bytes'])} ({shown})"
        for change, count in facts["rounded_again"].items():
            yield f"  rounded    {change} ({count})"
        each, whole = facts["cache_bytes_per_token"], gigabytes(facts["cache_bytes"])
        behind, window = facts["cache_bytes_per_token_behind_window"], facts["cache_window"]
        less = f" ({behind} behind a window of {window})" if window else ""
        yield f"  cache      {each} bytes a token{less}, {whole} for the whole context of {facts['context']}"
    if "memory_bytes" in facts:
        cache, scratch = gigabytes(facts["kv_bytes"]), gigabytes(facts["scratch_bytes"])
        whole = f"{gigabytes(facts['memory_bytes'])}: weights, {cache} of cache for {facts['kv_tokens']} tokens"
        yield f"  memory     {whole}, {scratch} of scratch, {gigabytes(facts['process_bytes'])} of the process"
    yield f"  runs       {_verdict(facts)}"


def _verdict(facts: Mapping[str, Any]) -> str:
    if facts["why_not"]:
        return f"no: {facts['why_not']}"
    available = facts["available_bytes"]
    if available is not None and facts.get("memory_bytes", facts["weight_bytes"]) > available:
        return f"no: {gigabytes(available)} are available"
    return "yes"


def _count(number: int) -> str:
    """Return a count in a readable unit: 1.10 B."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
