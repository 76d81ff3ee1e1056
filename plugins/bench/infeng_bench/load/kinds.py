"""The grammar of loads: ``tenants:greedy=100,others=3,prompt=lognormal:256:0.8``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from infeng_bench.load.arrivals import MOST, Lengths
from infeng_core.api import UsageError, unknown_key_remedy

AUTO = "auto"


class Key(NamedTuple):
    """A key of a load."""

    read: Callable[[str], Any]  # returns the value of a text; raises ValueError that names the accepted values
    default: str
    help: str


def _number(low: float, high: float, wanted: str, *, whole: bool = False) -> Callable[[str], Any]:
    def read(text: str) -> float | int:
        try:
            number = int(text) if whole else float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(wanted)
        return number

    return read


def _auto_or(read: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    def read_auto(text: str) -> Any:
        if text == AUTO:
            return AUTO
        try:
            return read(text)
        except ValueError:
            raise ValueError(f"auto or {wanted}") from None

    return read_auto


def _lengths(text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except UsageError as error:
        raise ValueError(error.remedy.removeprefix("give ")) from None


_COUNT = "a whole number of at least 1"
_TINY = 1e-9
_natural = _number(0, MOST, "a whole number", whole=True)
_positive = _number(1, MOST, _COUNT, whole=True)
_share = _number(0, 1, "a share from 0 to 1")
_above_0 = _number(_TINY, MOST, "a number above 0")
_flag = _number(0, 1, "0 or 1", whole=True)
_rate = _auto_or(_number(_TINY, math.inf, ""), "a number of requests a second above 0, or inf")

_COMMON = {
    "urgent": Key(_share, "0", "share of the requests with priority 1; the others have 0"),
    "prefix": Key(_natural, "0", "tokens that prompts begin with and share"),
    "prefixes": Key(_positive, "1", "how many beginnings there are; the k-th has weight 1/(k+1)"),
    "load": Key(_above_0, "0.8", "share of the capacity that rate=auto asks for; above 1 is overload"),
}
_DRAWN = {
    "rate": Key(_rate, AUTO, "requests a second, all together; inf: all at the beginning"),
    "prompt": Key(_lengths, "lognormal:192:0.8", "tokens of a prompt: N, LOW:HIGH or lognormal:MEDIAN:SIGMA"),
    "output": Key(_lengths, "lognormal:64:0.6", "new tokens of a request, likewise"),
}

KINDS: Mapping[str, Mapping[str, Key]] = {
    "poisson": {**_DRAWN, **_COMMON},
    "tenants": {
        "greedy": Key(_above_0, "100", "how many times the requests of each other the tenant `greedy` sends"),
        "others": Key(_positive, "3", "how many other tenants there are"),
        **_DRAWN,
        **_COMMON,
    },
    "zipf": {
        "alpha": Key(_number(-MOST, MOST, "a number"), "1.3", "adapter k has weight 1/(k+1)^alpha; 0 or less: in turn"),
        "adapters": Key(_positive, "16", "how many adapters there are"),
        "include_base": Key(_flag, "0", "1: the base model is one more choice, the last"),
        **_DRAWN,
        **_COMMON,
    },
    "bursts": {
        "size": Key(_positive, "32", "requests that come at once"),
        "every": Key(_auto_or(_above_0, "seconds"), AUTO, "seconds between bursts; auto: half of all come in bursts"),
        **_DRAWN,
        **_COMMON,
    },
    "overload": {
        "seconds": Key(_above_0, "60", "how long requests come, with --http"),
        "waiting": Key(_positive, "16", "scheduler.max_waiting, with --http: further requests are refused"),
        **_DRAWN,
        **_COMMON,
        "load": _COMMON["load"]._replace(default="4"),
    },
    "trace": {
        "scale": Key(_auto_or(_above_0, "a number above 0"), AUTO, "how many times as fast; auto: as load says"),
        **_COMMON,
    },
}
"""Each kind of load and its keys. A trace's FILE comes first, without a key."""

_ROUNDS = Key(_positive, "2", "how often")
SERVED: Mapping[str, Mapping[str, Key]] = {
    "pace": {
        "rows": Key(_positive, "4", "sequences that decode"),
        "prompt": Key(_positive, "1024", "tokens of the prompt that comes in beside them"),
        "step": Key(_positive, "100", "scheduler.step_ms that is compared with steps of any length"),
        "rounds": _ROUNDS,
    },
    "prefix": {
        "prompt": Key(_positive, "1024", "tokens that prompts share"),
        "tail": Key(_positive, "1", "tokens after them"),
        "rounds": _ROUNDS,
    },
    "leave": {
        "prompt": Key(_positive, "512", "tokens of the prompt in whose middle a client leaves"),
        "rounds": Key(_positive, "10", "how often in decode, and in prefill"),
    },
}
"""Special measurements of `serve --http` that are not traffic."""


@dataclass(frozen=True)
class Load:
    """A kind of load with the values of all its keys."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)  # by key
    file: Path | None = None  # of a trace
    text: str = ""  # as the user wrote it

    @staticmethod
    def parse(text: str) -> Load:
        """Read ``KIND[:KEY=VALUE,...]`` or ``trace:FILE[,KEY=VALUE,...]``; raises UsageError that names the choices."""
        kind, _, rest = text.partition(":")
        kinds = {**KINDS, **SERVED}
        if kind not in kinds:
            raise UsageError(f"load {text!r}", f"there is no kind {kind!r}", unknown_key_remedy(kind, kinds))
        keys, parts = kinds[kind], rest.split(",") if rest else []
        file: Path | None = None
        if kind == "trace":
            if not parts or not parts[0] or "=" in parts[0]:
                raise UsageError(f"load {text!r}", "no file is named", "give trace:FILE")
            file = Path(parts.pop(0)).expanduser()
        given: dict[str, Any] = {}
        for part in parts:
            name, equals, value = part.partition("=")
            if name not in keys:
                why = f"{kind} has no key {name!r}"
                remedy = f"{unknown_key_remedy(name, keys)} ({kind} has {', '.join(keys)})"
                raise UsageError(f"load {text!r}", why, remedy)
            if name in given:
                raise UsageError(f"load {text!r}", f"{name} is given twice", "give it once")
            given[name] = _value(text, name, keys[name], value if equals else "1")
        defaults = {name: key.read(key.default) for name, key in keys.items()}
        return Load(kind, {**defaults, **given}, file, text)

    def __getitem__(self, key: str) -> Any:
        """Return a key's value."""
        return self.values[key]

    @property
    def needs_capacity(self) -> bool:
        """Whether the rate is a share of the capacity, which the caller has to provide."""
        return bool(self["scale" if self.kind == "trace" else "rate"] == AUTO)

    def __str__(self) -> str:
        """Return the text with every key."""
        first = [] if self.file is None else [self.file.name]
        shown = (
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.values.items()
        )
        return f"{self.kind}:{','.join([*first, *shown])}"


def check_traffic(load: Load) -> None:
    """Raise UsageError for a kind of SERVED."""
    if load.kind in SERVED:
        raise UsageError(f"load {load.text!r}", "it is no traffic", "measure it with infeng bench serve --http")


def help_text() -> str:
    """Return every kind with its keys and their defaults, for ``--help``."""
    lines = []
    for kind, keys in KINDS.items():
        own = [name for name in keys if name not in _COMMON and name not in _DRAWN]
        lines.append(f"{kind}:{'FILE,' if kind == 'trace' else ''}{','.join(f'{n}={keys[n].default}' for n in own)}")
    for group in (_DRAWN, _COMMON):
        lines += [f"  {name}={key.default}  {key.help}" for name, key in group.items()]
    lines.append("with infeng bench serve --http alone:")
    lines += [f"{kind}:{','.join(f'{n}={key.default}' for n, key in keys.items())}" for kind, keys in SERVED.items()]
    return "\n".join(lines)


def _value(text: str, name: str, key: Key, value: str) -> Any:
    try:
        return key.read(value)
    except ValueError as error:
        raise UsageError(f"load {text!r}", f"{name} is {value!r}", f"give {error}") from None
