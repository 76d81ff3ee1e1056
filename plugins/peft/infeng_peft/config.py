"""adapter_config.json of PEFT: the modules that an adapter changes, their rank and scaling, and unsupported fields.

The rules are those of PEFT's own loader (``peft/tuners/tuners_utils.py``, ``check_target_module_exists``;
``peft/tuners/lora/layer.py``, ``update_layer``; ``peft/utils/other.py``, ``get_pattern_key`` and ``_set_trainable``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infeng_core.api import ModelError
from infeng_core.api.adapters import MAX_INVOCATION, MAX_RANK, Snapshot
from infeng_core.api.formats import Fields, parse_json, show
from infeng_peft.patterns import MAX_COUNT, MAX_LENGTH, Patterns, Refuse

CONFIG_FILE = "adapter_config.json"
MAX_TRAINED_MODULES = 16
MAX_BYTES = 4 << 20  # rank_pattern may name every module of a large model
INVOCATION = "alora_invocation_tokens"
TRAINED = "trainable_token_indices"
REMEDY = "fix the file, or save the adapter again"
DEFAULT_TARGETS = ("q_proj", "v_proj")  # PEFT's default for Llama and Qwen2 if target_modules is null

# Fields about an adapter's training or origin, without effect on its results. fan_in_fan_out concerns the base's
# matrices in memory: PEFT sets it to false for linear layers, and A and B always have the same layout.
HARMLESS = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ephemeral_gpu_offload",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "lora_ga_config",
    "loftq_config",
    "megatron_core",
    "merge_weights",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
]
READ = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "bias",
    "ensure_weight_tying",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_bias",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
]
# These initializations also change the base: without the changed base the adapter gives other results.
CHANGES_BASE = re.compile(r"pissa.*|olora|corda|loftq|lora_ga")
CONVERT = (
    "save it as a plain LoRA adapter, which has init_lora_weights true: "
    "save_pretrained(..., path_initial_model_for_weight_conversion=DIR), where DIR is the adapter before training"
)
CHANGES_NOTHING = ("gaussian", "eva", "orthogonal", "mica")


class Modules:
    """Names of modules, compared at their ends, or one pattern for whole names."""

    def __init__(self, fields: Fields, key: str, default: tuple[str, ...] = ()) -> None:
        """Read a field; an absent or null one is ``default``."""
        value = fields.data.get(key)
        self.given = default if value is None else value if isinstance(value, str) else _names(fields, key)
        self.names = frozenset(() if isinstance(self.given, str) else self.given)
        self.is_all_linear = isinstance(value, str) and value.lower() == "all-linear"
        self._ends = tuple(f".{name}" for name in self.names)
        self._pattern = Patterns([value], _refuse(fields, key)) if isinstance(value, str) and value else None

    def has(self, module: str) -> bool:
        """Return whether the field selects a module; raises ModelError for a pattern that cannot be matched."""
        if self._pattern is not None:
            return self._pattern.fullmatch(module) is not None
        return f".{module}".endswith(self._ends)


class ByPattern:
    """Values for modules by patterns of their names' ends; the first match decides."""

    def __init__(self, fields: Fields, key: str, read: Callable[[Fields, str], float]) -> None:
        """Read a field; an absent or null one has no pattern."""
        inner = fields.mapping(key) if fields.has(key) else Fields({}, fields.source)
        for name in inner.data:
            if not _is_name(name) or not name.isprintable():
                inner.fail(show(name), "is no name of a module")
        self._patterns = Patterns(list(inner.data), _refuse(fields, key))
        self._values = [read(inner, name) for name in inner.data]

    def get(self, module: str, default: float) -> float:
        """Return the value for a module; raises ModelError for a pattern that cannot be matched."""
        place = self._patterns.matches_end(module)
        return default if place is None else self._values[place]


@dataclass(frozen=True)
class PeftConfig:
    """The fields of adapter_config.json that affect results."""

    source: Path
    base_name: str
    rank: int
    alpha: float
    rank_pattern: ByPattern
    alpha_pattern: ByPattern
    target_modules: Modules
    target_parameters: tuple[str, ...]
    peft_version: tuple[int, ...]  # () if unknown
    exclude_modules: Modules
    layers_to_transform: tuple[int, ...]
    layers_pattern: Patterns | None
    modules_to_save: tuple[str, ...]
    saved_pattern: Patterns  # the same names as patterns, which PEFT uses when it looks for targets
    bias: Literal["none", "all", "lora_only"]
    use_dora: bool
    use_rslora: bool
    lora_bias: bool
    ensure_weight_tying: bool
    invocation: tuple[int, ...]  # of an activated adapter (aLoRA); () of one that acts on all tokens
    trained_tokens: Mapping[str, tuple[int, ...]]  # by the end of a module's name; "" is the embedding
    fields: Fields = field(repr=False)

    def is_target(self, module: str, *, plain: bool = True) -> bool:
        """Return whether PEFT puts an adapter on ``module`` ("model.layers.0.mlp.up_proj"); raises ModelError.

        ``plain``: "all-linear" includes it, as a linear layer other than the output embedding.
        """
        if self.exclude_modules.has(module) or self._is_saved(module):
            return False
        if self.target_modules.is_all_linear:
            return plain
        if not self.target_modules.has(module):
            return False
        if module in self.target_modules.names:
            return True  # a full name counts whatever the layers are
        return not self.layers_to_transform or self._layer(module) in self.layers_to_transform

    def is_target_parameter(self, name: str) -> bool:
        """Return whether PEFT puts an adapter on a parameter, such as "model.layers.0.mlp.experts.down_proj"."""
        return any(name == target or name.endswith(f".{target}") for target in self.target_parameters)

    def rank_of(self, module: str) -> int:
        """Return the rank of one module."""
        return int(self.rank_pattern.get(module, self.rank))

    def scaling_of(self, module: str) -> float:
        """Return the factor of the product of A and B: alpha / r, or alpha / sqrt(r) for rsLoRA."""
        rank = self.rank_of(module)
        alpha = float(self.alpha_pattern.get(module, self.alpha))
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def saves(self, module: str) -> bool:
        """Return whether ``modules_to_save`` names a module; PEFT compares the ends of names."""
        return module.endswith(self.modules_to_save)

    def _is_saved(self, module: str) -> bool:
        """Return whether ``modules_to_save``, taken as patterns, match a run of whole segments of the name."""
        ends = [len(module), *(dot.start() for dot in re.finditer(r"\.", module))]
        return any(self.saved_pattern.matches_end(module[:end]) is not None for end in ends)

    def _layer(self, module: str) -> int | None:
        """Return the layer's number as PEFT finds it: the first number after any or one of the given names."""
        numbers = [(found[1], module[: found.start()]) for found in re.finditer(r"\.(\d+)\.", module)]
        if self.layers_pattern is None:
            return next((int(number) for number, before in numbers if "." in before), None)
        places = [(self.layers_pattern.matches_end(before), number) for number, before in numbers]
        found = [(place, number) for place, number in places if place is not None]
        return int(min(found, key=lambda pair: pair[0])[1]) if found else None


def read_peft_config(directory: Path, files: Snapshot) -> PeftConfig:
    """Read adapter_config.json of ``directory``; raises ModelError naming a wrong or unsupported field."""
    path = directory / CONFIG_FILE
    remedy = "give the directory that PEFT's save_pretrained wrote"
    try:
        document = parse_json(files.text(path, MAX_BYTES, remedy))
    except ValueError as error:
        raise ModelError(f"{path}", f"not valid JSON ({error})", remedy) from None
    fields = Fields(document, path, remedy=REMEDY)
    kind = fields.text("peft_type")
    if kind != "LORA":
        fields.fail("peft_type", f"is {show(kind)}, only LORA adapters (rsLoRA and DoRA among them) are run")
    _refuse_what_is_not_run(fields)
    bias = fields.text("bias", "none")
    if bias not in ("none", "all", "lora_only"):
        fields.fail("bias", f"is {show(bias)}, it must be none, all or lora_only")
    use_dora, lora_bias = fields.flag("use_dora", False), fields.flag("lora_bias", False)
    if use_dora and lora_bias:
        fields.fail("lora_bias", "is set together with use_dora, which PEFT does not define")
    targets, saved = Modules(fields, "target_modules", DEFAULT_TARGETS), _names(fields, "modules_to_save")
    parameters = _names(fields, "target_parameters")
    for key, is_set in (("use_dora", use_dora), ("lora_bias", lora_bias)):
        if parameters and is_set:
            fields.fail(key, "is set together with target_parameters, which PEFT does not define")
    if parameters and not fields.has("target_modules"):
        targets = Modules(fields, "target_modules")  # PEFT has no default then
    layers_pattern = _names(fields, "layers_pattern")
    transform = fields.data.get("layers_to_transform")
    if isinstance(targets.given, str) and (transform is not None or fields.has("layers_pattern")):
        fields.fail("layers_to_transform", "cannot be used where target_modules is a string")
    return PeftConfig(
        source=path,
        base_name=fields.text("base_model_name_or_path", "") or "",
        rank=fields.integer("r", 1, MAX_RANK, 8),
        alpha=_alpha(fields, "lora_alpha", 8.0),
        rank_pattern=ByPattern(fields, "rank_pattern", lambda inner, key: inner.integer(key, 1, MAX_RANK)),
        alpha_pattern=ByPattern(fields, "alpha_pattern", _alpha),
        target_modules=targets,
        target_parameters=parameters,
        peft_version=_version(fields),
        exclude_modules=Modules(fields, "exclude_modules"),
        layers_to_transform=_layers(fields, [transform] if isinstance(transform, int) else transform),
        layers_pattern=Patterns(layers_pattern, _refuse(fields, "layers_pattern")) if layers_pattern else None,
        modules_to_save=saved,
        saved_pattern=Patterns(saved, _refuse(fields, "modules_to_save")),
        bias=bias,  # type: ignore[arg-type]
        use_dora=use_dora,
        use_rslora=fields.flag("use_rslora", False),
        lora_bias=lora_bias,
        ensure_weight_tying=fields.flag("ensure_weight_tying", False),
        invocation=_invocation(fields),
        trained_tokens=_trained_tokens(fields),
        fields=fields,
    )


def _refuse_what_is_not_run(fields: Fields) -> None:
    """Raise ModelError for a field that is set and whose effect this engine does not support or know."""
    for key, value in fields.data.items():
        if key in HARMLESS or key in READ or value in (None, False, "", [], {}):
            continue
        fields.fail(show(key).strip("'"), f"is {show(value)}, which is not run here", "use an adapter without it")
    start = fields.data.get("init_lora_weights")
    if isinstance(start, str) and start not in CHANGES_NOTHING:
        if not CHANGES_BASE.fullmatch(start.lower()):
            fields.fail("init_lora_weights", f"is {show(start)}, which is not known here")
        remedy = CONVERT if not start.lower().startswith(("loftq", "lora_ga")) else "train with another initialization"
        fields.fail("init_lora_weights", f"is {show(start)}, which also changes the base model", remedy)


def _invocation(fields: Fields) -> tuple[int, ...]:
    """Return ``alora_invocation_tokens``; raises for a field that PEFT does not define beside them.

    PEFT has activated variants of linear layers alone. Trained biases, trained tokens and saved modules would change
    all tokens, those before the invocation too.
    """
    found = fields.integers(INVOCATION, 0, 1 << 30)
    if len(found) > MAX_INVOCATION:
        fields.fail(INVOCATION, f"has {len(found)} tokens, it may have {MAX_INVOCATION}")
    for key in ("use_dora", "target_parameters") if found else ():
        if fields.data.get(key):
            fields.fail(key, f"is set together with {INVOCATION}, which PEFT does not define")
    for key in ("bias", "modules_to_save", TRAINED) if found else ():
        if fields.data.get(key) not in (None, "none", [], {}, ""):
            why = f"is {show(fields.data[key])} together with {INVOCATION}: it would change the tokens before these too"
            fields.fail(key, why, "train it without")
    return found


def _trained_tokens(fields: Fields) -> Mapping[str, tuple[int, ...]]:
    """Return ``trainable_token_indices``: a list for the embedding, or lists by the names of modules."""
    value = fields.data.get(TRAINED)
    if not value:
        return {}
    lists = value if isinstance(value, dict) else {"": value}
    if len(lists) > MAX_TRAINED_MODULES or not all(map(_is_name, filter(None, lists))):
        fields.fail(TRAINED, f"is {show(value)}, it must be a list of tokens or lists by names of modules")
    found = {
        name: Fields({TRAINED: one}, fields.source, remedy=REMEDY).integers(TRAINED, 0, (1 << 31) - 1)
        for name, one in lists.items()
    }
    for name, tokens in found.items():
        told = f" for {show(name)}" if name else ""
        if not 1 <= len(tokens) <= MAX_RANK:
            remedy = 'train so many with modules_to_save=["embed_tokens"]' if tokens else REMEDY
            fields.fail(TRAINED, f"has {len(tokens)} tokens{told}, it may have 1 to {MAX_RANK}", remedy)
        if len(set(tokens)) < len(tokens):
            fields.fail(TRAINED, f"names a token twice{told}")
    return found


def _version(fields: Fields) -> tuple[int, ...]:
    """Return the version of PEFT that saved an adapter, (0, 19, 1); the leading numeric parts only."""
    said = fields.data.get("peft_version")
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", said) if isinstance(said, str) else None
    return tuple(map(int, found.groups())) if found else ()


def _alpha(fields: Fields, key: str, default: float | None = None) -> float:
    return fields.number(key, -1e6, 1e6, default)


def _refuse(fields: Fields, key: str) -> Refuse:
    """Return a function that raises for a pattern of a field."""
    return lambda pattern, why: fields.fail(key, f"holds {show(pattern)}, which {why}")


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.data.get(key)
    names = [value] if isinstance(value, str) and value else value or []
    if not isinstance(names, list) or len(names) > MAX_COUNT or not all(map(_is_name, names)):
        fields.fail(key, f"is {show(value)}, it must be a list of names")
    return tuple(names)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_LENGTH


def _layers(fields: Fields, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_COUNT or not all(type(item) is int for item in value):
        fields.fail("layers_to_transform", f"is {show(value)}, it must be a layer's number or a list of them")
    return tuple(value)
