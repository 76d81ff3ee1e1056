"""Gates: limits on figures of a result, such as a latency SLA, which every verb takes with ``--gate``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_bench.reports import results
from infeng_core.api import UsageError, unknown_key_remedy

MOST = 256
"""Most gates of one call."""

_FORM = re.compile(r"\s*([A-Za-z][\w.:=,-]*?)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")
_TURNED = re.compile(r"(ttft|tpot|itl|e2el)_(mean|median|std|p99)_ms")  # other tools write p99_ttft_ms like this


@dataclass(frozen=True)
class Gate:
    """A limit of a figure: ``<=`` is checked against the upper confidence bound of the figure where the result has one,
    ``>=`` against the lower one.
    """

    figure: str
    """Its name in results, with dots between nested names."""
    sign: str
    bound: float

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return f"{self.figure}{self.sign}{self.bound:g}"

    def judge(self, figures: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outcome for the figures of one measurement by their dotted names; None without the figure."""
        value = _number(figures.get(self.figure))
        if value is None:
            return None
        judged = _bound(figures, self.figure, is_low=self.sign == ">=")
        judged = value if judged is None else judged
        passed = judged <= self.bound if self.sign == "<=" else judged >= self.bound
        return {"gate": str(self), "value": value, "judged": judged, "passed": passed}


def parse(texts: Sequence[str]) -> list[Gate]:
    """Return the gates of ``--gate``, each such as ``lora_tax<=0.15`` or several with commas; raises UsageError."""
    found = []
    for text in texts:
        for part in re.split(r",(?=\s*[A-Za-z][\w.:=-]*\s*[<>]=)", text):
            match = _FORM.fullmatch(part)
            if match is None:
                why = "is none"
                raise UsageError(f"--gate {part!r}", why, "write a figure and its bound, as in p99_ttft_ms<=500")
            name, sign, bound = match.groups()
            found.append(Gate(_known(name), sign, _bound_of(part, bound)))
    if len(found) > MOST:
        raise UsageError("--gate", f"{len(found)} gates are given", f"give at most {MOST}")
    return found


def judged(result: Mapping[str, Any], gates: Sequence[Gate]) -> list[dict[str, Any]]:
    """Return the outcome of each gate for each measurement that has its figure; a figure that none has is missed."""
    found = []
    for gate in gates:
        outcomes = []
        for whose, figures in _parts(result):
            one = gate.judge(figures)
            if one is not None:
                outcomes.append({**one, "of": whose} if whose else one)
        found += outcomes or [{"gate": str(gate), "value": None, "judged": None, "passed": False}]
    return found


def sentence(outcome: Mapping[str, Any]) -> str:
    """Return the printed outcome of a gate."""
    whose = f"gate {outcome['gate']}" + (f" of {outcome['of']}" if "of" in outcome else "")
    if outcome["value"] is None:
        return f"{whose}: missed, the result has no such figure"
    said = f"{outcome['value']:.4g}"
    if outcome["judged"] != outcome["value"]:
        said += f", its bound {outcome['judged']:.4g}"
    return f"{whose}: {'kept' if outcome['passed'] else 'missed'}, it is {said}"


def _parts(result: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the figures of each measurement, and those of the result itself."""
    for one in result.get("measurements", ()):
        named = [f"{name} {one[name]}" for name in ("adapters", "rank", "rows", "policy", "model") if name in one]
        yield str(one.get("work") or one.get("linear") or ", ".join(named)), dict(results.flat(one))
    yield "", dict(results.flat({name: value for name, value in result.items() if name != "measurements"}))


def _bound(figures: Mapping[str, Any], name: str, *, is_low: bool) -> float | None:
    """Return the lower or upper confidence bound of a figure, as results name it; None without one."""
    head, dot, tail = name.rpartition(".")
    if head == "ratios" and is_low:
        return _number(figures.get(f"ratio_low{dot}{tail}"))
    return _number(figures.get(f"{name}_{'low' if is_low else 'high'}"))


def _known(name: str) -> str:
    """Return the name of a figure in results; raises UsageError for a name that no result has."""
    head, dot, tail = name.rpartition(".")
    if turned := _TURNED.fullmatch(tail):
        tail = f"{turned[2]}_{turned[1]}_ms"
    first = (head or tail).partition(".")[0]
    known = set(_names(results.schema()))
    if first not in known:
        raise UsageError(f"--gate {name}", "no result has such a figure", unknown_key_remedy(first, known))
    return f"{head}{dot}{tail}"


def _names(schema: Any) -> Iterator[str]:
    """Yield the names of all properties of a JSON Schema."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        required = schema.get("required")
        if isinstance(required, list):
            yield from (name for name in required if isinstance(name, str))
        for value in schema.values():
            yield from _names(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _names(value)


def _bound_of(part: str, text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise UsageError(f"--gate {part!r}", f"{text} is no number", "write it as 0.15")
    return bound


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
