"""The settings of an engine: one record per section of a manifest.

These classes are the schema: a field's default is the engine's default, and its ``kind`` says which values it takes.
The shipped ``manifests/default.yaml`` spells out the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from infeng_core import _native
from infeng_core.record import Entry, Record, entries, entry
from infeng_core.settings.schema import (
    Auto,
    Bool,
    Choice,
    Int,
    Kind,
    ListOf,
    MapOf,
    Name,
    OneOrMore,
    Optional,
    OrWord,
    Requirement,
    Size,
    Text,
)

OPS = _native.OPS
"""Operations of the ABI, as manifests name them."""

WEIGHT_FORMATS = tuple(_native.WEIGHT_FORMATS)
"""The core's own weight formats; plugins bring more."""


MOST_RESIDENT = 1 << 15
"""Adapters in memory with ``adapters.max_resident: auto``. Each lies in a mapping of its own, of which Linux allows a
process 65,530 (vm.max_map_count)."""


def setting(default: Any, kind: Kind, help: str, *, path: bool = False) -> Any:
    """Declare a field: its default, its kind, one line of help, and whether a manifest's folder is its base."""
    metadata = {"kind": kind, "help": help, "path": path}
    if isinstance(default, dict):
        return entry(default_factory=lambda: MappingProxyType(dict(default)), metadata=metadata)
    return entry(default=default, metadata=metadata)


def default_of(made: Entry) -> Any:
    """Return the default of a field made by ``setting``."""
    return made.made_default()


class ModelSection(Record):
    """The model, and the storage of its weights in memory."""

    path: str | None = setting(None, Optional(Text()), "directory or hub name", path=True)
    format: str = setting("int4-p32-arow-h256", Text(), "weight format of every linear")
    formats: Mapping[str, str] = setting(
        {"embed": "int8-row"}, MapOf(Text()), "tensor name pattern to format; the last match wins over `format`"
    )
    context: int | None = setting(
        None, Optional(Int(1, 1 << 28)), "most positions of a sequence; null: as many as model and cache allow"
    )
    quantizer: str = setting("nearest", Text(), "chooses the codes and scales of integer formats, by name")
    load: Literal["copy", "mmap"] = setting("copy", Choice(("copy", "mmap")), "huge-page arena, or map the file")
    cache: int | Literal["auto", "none"] = setting(
        "auto", OrWord(("auto", "none"), Size()), "most bytes of converted models to keep; auto: a quarter of the disk"
    )


class KernelsSection(Record):
    """The kernel library for each operation."""

    order: tuple[str, ...] = setting(
        ("amx", "avx512", "avx2", "*", "reference"), ListOf(Text()), "libraries, best first; * is every one not named"
    )
    numerics: Literal["exact", "fast"] = setting(
        "exact", Choice(("exact", "fast")), "fast also allows approximate kernels"
    )
    force: Mapping[str, str] = setting({}, MapOf(Text()), "op to library or library/kernel")
    disable: tuple[str, ...] = setting((), ListOf(Text()), "libraries, or library/kernel, never to be used")
    strict: bool = setting(False, Bool(), "a plugin that fails is an error, not a warning")
    verify: bool = setting(True, Bool(), "compare each kernel with the reference before its first use")
    lock: str | None = setting(None, Optional(Text()), "manifest.lock whose bindings must hold", path=True)


class KvCacheSection(Record):
    """The key/value cache."""

    dtype: str = setting("int8", Choice(_native.CACHE_FORMATS), "how keys and values are stored")
    block: int = setting(16, Int(16, 16), "positions per block, fixed by the ABI")
    memory: int | Literal["auto"] = setting("auto", Auto(Size()), 'bytes, "512MB" or auto')
    windows: bool = setting(
        True, Bool(), "layers with an attention window keep only its blocks; without effect where prefix_dir is set"
    )
    prefix: bool = setting(True, Bool(), "requests with equal beginnings share its cache blocks; tokens stay the same")
    prefix_dir: str | None = setting(None, Optional(Text()), "directory that keeps prefixes between runs", path=True)
    prefix_store: str = setting("disk", Name(), "prefix store of a plugin, by name")
    prefix_disk: int = setting(1 << 30, Size(), 'most bytes in prefix_dir, "4GB"')


class SchedulerSection(Record):
    """The requests that share a step."""

    use: str = setting("fcfs", Text(), "scheduler by name")
    max_batch_tokens: int = setting(512, Int(1, 1 << 16), "most rows of one step")
    max_running: int = setting(32, Int(1, 4096), "most requests in flight")
    step_ms: int = setting(
        100,
        Int(0, 1 << 20),
        "milliseconds that a step may take while requests decode; prompts get the rest; 0: no limit",
    )
    max_waiting: int = setting(0, Int(0, 1 << 30), "most waiting requests; further ones are refused; 0: any number")
    max_waiting_tokens: int = setting(0, Int(0, 1 << 40), "most tokens of waiting prompts; 0: any number")
    max_wait_ms: int = setting(
        0,
        Int(0, 1 << 30),
        "refuse a request with a longer predicted wait; 0: never; in infeng serve: 5000",
    )
    stall_ms: int = setting(
        30000, Int(0, 1 << 30), "milliseconds in one step after which the log says where it hangs; 0: never"
    )


class SpeculationSection(Record):
    """Guesses of the next tokens; the resulting text is the same."""

    use: str = setting("none", Text(), "drafter by name, or none; ngram repeats earlier parts of the same text")
    tokens: int | Literal["auto"] = setting(
        "auto", Auto(Int(1, 16)), "most guessed tokens of one request in a step; auto: as the drafter says, ngram: 4"
    )

    @property
    def most(self) -> int:
        """The most that a request may guess in a step; 0 without speculation."""
        if self.use == "none":
            return 0
        if self.tokens == "auto":
            return 4 if self.use == "ngram" else 16
        return self.tokens


class SamplingSection(Record):
    """The choice of tokens, where requests do not say."""

    order: tuple[str, ...] = setting(
        _native.FILTERS, ListOf(Choice(_native.FILTERS)), "filters in the order in which they act; others follow"
    )


class AdaptersSection(Record):
    """LoRA adapters."""

    max_resident: int | Literal["auto"] = setting(
        "auto", Auto(Int(0, 1 << 16)), "most adapters in memory; auto: as many as `memory` holds; 0: no adapters"
    )
    memory: int | Literal["auto"] = setting("auto", Auto(Size()), 'most bytes of all of them: bytes, "512MB" or auto')
    dtype: Literal["int8", "int8t4", "bf16", "f32"] = setting(
        "int8", Choice(("int8", "int8t4", "bf16", "f32")), "storage of A and B"
    )
    cache: int | Literal["none"] = setting(
        1 << 32, OrWord(("none",), Size()), 'most bytes of packed PEFT directories to keep on disk, "4GB"'
    )
    load_timeout: int = setting(60, Int(1, 1 << 16), "most seconds that reading one may take")
    paths: Mapping[str, str] = setting({}, MapOf(Text()), "name to directory, artifact or hub name", path=True)
    directory: tuple[str, ...] = setting(
        (),
        OneOrMore(Text()),
        "folders whose subfolders are adapters by their names, and hub names; read where a request names one",
        path=True,
    )
    warm: tuple[str, ...] = setting((), ListOf(Text()), "names to load at the start and keep in memory")

    @property
    def most_resident(self) -> int:
        """The most adapters in memory; MOST_RESIDENT where memory alone bounds their number."""
        return MOST_RESIDENT if self.max_resident == "auto" else self.max_resident


class TokenizerSection(Record):
    """Text to ids and back."""

    use: str = setting("hf", Text(), "tokenizer by name")
    threads: int = setting(2, Int(1, 256), "threads that encode prompts")
    parse_special: bool = setting(True, Bool(), "special tokens in a prompt's text become their ids, or stay text")


class ThreadsSection(Record):
    """The worker pool."""

    count: int | Literal["auto"] = setting("auto", Auto(Int(1, 1024)), "workers; auto: cores this process may use")
    pin: bool | Literal["auto"] = setting(
        "auto", Auto(Bool()), "bind each worker to a core; auto: as many workers as cores"
    )
    smt: bool | Literal["auto"] = setting(
        "auto", Auto(Bool()), "workers on second hardware threads of a core; auto: where count is more than the cores"
    )
    nodes: Literal["auto", "all"] | tuple[int, ...] = setting(
        "auto",
        OrWord(("auto", "all"), ListOf(Int(0, 1023))),
        "NUMA nodes whose cores are used; auto: the one with most cores if the model fits there, else all",
    )
    nice: int = setting(0, Int(0, 19), "how far workers stand behind other threads of the process (Linux)")


class MemorySection(Record):
    """The memory of weights, cache and adapters."""

    lock: bool = setting(False, Bool(), "keep them from being swapped out; needs the right to (ulimit -l)")
    place: Literal["auto", "local", "interleave", "first-touch"] = setting(
        "auto",
        Choice(("auto", "local", "interleave", "first-touch")),
        "on nodes of threads.nodes: these, these in turn, or where touched first; auto: local to one, else in turn",
    )


class BackendSection(Record):
    """The executor of programs."""

    use: str = setting("native", Text(), "backend by name")
    order: tuple[str, ...] = setting(
        (), ListOf(Name()), "backends by name, in place of use: the first that can run the model on this machine"
    )


class ObserversSection(Record):
    """Observers of the engine's work."""

    use: tuple[str, ...] = setting((), ListOf(Name()), "observers by name; log writes a line for each request")


class PluginsSection(Record):
    """The sources of plugins, besides installed wheels."""

    paths: tuple[str, ...] = setting((), ListOf(Text()), "plugin.yaml files", path=True)
    disable: tuple[str, ...] = setting((), ListOf(Text()), "plugins never to be used")
    require: Mapping[str, Mapping[str, str]] = setting(
        {}, MapOf(Requirement()), "plugin to the version and sha256 that it must have; another one is an error"
    )


class EngineConfig(Record):
    """A complete, validated assembly; made by ``load_config``.

    ``provenance["kv_cache.dtype"]`` is the origin of a value: ``"default"``, ``"engine.yaml:7"``,
    ``"INFENG_KV_CACHE_DTYPE"`` or ``"argument"``. If single entries of a map were set, each entry has its own
    (``provenance["model.formats.embed"]``).
    """

    model: ModelSection = entry(default_factory=ModelSection)
    kernels: KernelsSection = entry(default_factory=KernelsSection)
    kv_cache: KvCacheSection = entry(default_factory=KvCacheSection)
    scheduler: SchedulerSection = entry(default_factory=SchedulerSection)
    speculation: SpeculationSection = entry(default_factory=SpeculationSection)
    sampling: SamplingSection = entry(default_factory=SamplingSection)
    adapters: AdaptersSection = entry(default_factory=AdaptersSection)
    tokenizer: TokenizerSection = entry(default_factory=TokenizerSection)
    threads: ThreadsSection = entry(default_factory=ThreadsSection)
    memory: MemorySection = entry(default_factory=MemorySection)
    backend: BackendSection = entry(default_factory=BackendSection)
    observers: ObserversSection = entry(default_factory=ObserversSection)
    plugins: PluginsSection = entry(default_factory=PluginsSection)
    extra: Mapping[str, Mapping[str, Any]] = entry(default_factory=dict)
    """Values set for plugins' own settings, by the plugin's name; ``Plugins.settings`` adds their defaults."""
    provenance: Mapping[str, str] = entry(default_factory=dict, compare=False)

    def values(self) -> dict[str, Any]:
        """Return every setting by its dotted name, in the order of the schema, then those of plugins."""
        values = {f"{s}.{k}": getattr(getattr(self, s), k) for s, keys in SCHEMA.items() for k in keys}
        return values | {f"{s}.{k}": value for s, given in self.extra.items() for k, value in given.items()}


SECTIONS = {name: type(value) for name, value in vars(EngineConfig()).items() if isinstance(value, Record)}
"""The class of each section, by its name."""

Schema = Mapping[str, Mapping[str, Entry]]
"""Sections to keys to entries made by ``setting``."""

SCHEMA: Schema = {name: entries(cls) for name, cls in SECTIONS.items()}
