"""One wrong idea for each term of an adapter: the term is left out, or is what people mistake it for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from goldens.adapted import ADAPTED, Adapted
from infeng_numpy.adapter import Adapter, Change, Rows
from infeng_numpy.llama import Llama

CASES = {case.name: case for case in ADAPTED}


@dataclass(frozen=True)
class AdapterMutant:
    """A Llama with one method replaced, or an adapter changed before it is used, and the case that must notice."""

    name: str
    case: Adapted
    method: str = ""
    make: Callable[..., Any] | None = None  # like the method, with self first
    spoil: Callable[[Sequence[Rows]], list[Rows]] = list

    @property
    def model(self) -> type[Llama]:
        """Return the wrong class."""
        return type("Mutant", (Llama,), {self.method: self.make} if self.method else {})


def _term(name: str, case: str, method: str, make: Callable[..., Any]) -> AdapterMutant:
    assert hasattr(Llama, method), f"{method} is not a term of the model"
    return AdapterMutant(name, CASES[case], method, make)


def _each(name: str, case: str, change: Callable[[str, Change], Change]) -> AdapterMutant:
    """Change every change of the adapter."""

    def spoil(rows: Sequence[Rows]) -> list[Rows]:
        return [
            each._replace(
                adapter=replace(each.adapter, changes={n: change(n, c) for n, c in each.adapter.changes.items()})
            )
            for each in rows
        ]

    return AdapterMutant(name, CASES[case], spoil=spoil)


def _whole(name: str, case: str, change: Callable[[Adapter], Adapter]) -> AdapterMutant:
    return AdapterMutant(
        name, CASES[case], spoil=lambda rows: [each._replace(adapter=change(each.adapter)) for each in rows]
    )


def _exchanged(adapter: Adapter, first: str, second: str) -> Adapter:
    changes = {
        name.replace(first, "?").replace(second, first).replace("?", second): change
        for name, change in adapter.changes.items()
    }
    return replace(adapter, changes=changes)


def _scale_of_the_change_alone(self: Llama, y: Any, u: Any, change: Change, weight: float) -> Any:
    return y + self.expanded(0 * y, u * self.scaling(change, weight), change) * change.row_scale


def _scale_of_the_base_alone(self: Llama, y: Any, u: Any, change: Change, weight: float) -> Any:
    return self.expanded(y * change.row_scale, u * self.scaling(change, weight), change)


def _bias_before_scale(self: Llama, x: Any, linear: Any) -> Any:
    return self.adapt_linear(linear.name, x, self.product(x, linear) + (0 if linear.bias is None else linear.bias))


def _without(part: str) -> Callable[[str, Change], Change]:
    def change(name: str, change: Change) -> Change:
        if part not in name:
            return change
        return replace(change, a=0 * change.a, row_scale=None, bias=None)

    return change


def _panel_turned(panels: int) -> Callable[[str, Change], Change]:
    """Exchange the first panel of 16 outputs with another one."""

    def change(name: str, change: Change) -> Change:
        b = change.b.copy()
        if len(b) < 16 * panels + 16:
            return change
        b[:16], b[16 * panels : 16 * panels + 16] = change.b[16 * panels : 16 * panels + 16], change.b[:16]
        return replace(change, b=b)

    return change


MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "layers.0.", "layers.1.")

MUTANTS = (
    # low rank
    AdapterMutant("no adapter", CASES["lora"], spoil=lambda rows: []),
    AdapterMutant(
        "all rows but the last", CASES["lora"], spoil=lambda r: [each._replace(end=each.end - 1) for each in r]
    ),
    AdapterMutant(
        "all rows but the first", CASES["thin"], spoil=lambda r: [each._replace(begin=each.begin + 1) for each in r]
    ),
    *(_each(f"{module} left out", "lora", _without(module)) for module in MODULES),
    _term("not scaled", "lora", "scaling", lambda self, change, weight: np.full(len(change.a), weight)),
    _term("scaled by alpha", "lora", "scaling", lambda self, change, weight: change.scaling * len(change.a)),
    _term("1/r for 1/sqrt(r)", "rslora", "scaling", lambda self, c, weight: c.scaling / np.sqrt(len(c.a))),
    _each(
        "patterns of alpha ignored",
        "patterns",
        lambda name, c: replace(c, scaling=0 * c.scaling + 6 / max(1, len(c.a))),
    ),
    _each("one rank too few", "thin", lambda name, c: replace(c, a=c.a[:-1], b=c.b[:, :-1], scaling=c.scaling[:-1])),
    _each(
        "the last of 17 ranks lost",
        "one-layer",
        lambda name, c: replace(c, a=c.a[:16], b=c.b[:, :16], scaling=c.scaling[:16]),
    ),
    _each("ranks in another order", "lora", lambda name, c: replace(c, b=c.b[:, ::-1])),
    _each("first panels exchanged", "lora", _panel_turned(1)),
    _each("first and third panel exchanged", "thin", _panel_turned(2)),
    _whole("gate and up exchanged", "lora", lambda adapter: _exchanged(adapter, "gate_proj", "up_proj")),
    _whole("k and v exchanged", "lora", lambda adapter: _exchanged(adapter, "k_proj", "v_proj")),
    _whole("layers exchanged", "lora", lambda adapter: _exchanged(adapter, "layers.0", "layers.1")),
    # several
    AdapterMutant("only the first", CASES["combined"], spoil=lambda rows: list(rows[:1])),
    AdapterMutant("only the last", CASES["combined"], spoil=lambda rows: list(rows[1:])),
    _term("weights ignored", "combined", "scaling", lambda self, change, weight: change.scaling),
    AdapterMutant(
        "weights exchanged",
        CASES["combined"],
        spoil=lambda rows: [r._replace(weight=o.weight) for r, o in zip(rows, rows[::-1], strict=True)],
    ),
    # DoRA
    _term("no magnitude", "dora", "rescaled", lambda self, y, row_scale: y),
    _term("magnitude on the change alone", "dora", "changed", _scale_of_the_change_alone),
    _term("magnitude on the base alone", "dora", "changed", _scale_of_the_base_alone),
    _term("magnitude on the bias as well", "dora", "linear", _bias_before_scale),
    _each("magnitudes of another panel", "dora", lambda name, c: replace(c, row_scale=np.roll(c.row_scale, 16))),
    _each(
        "no magnitude of the head", "dora-rslora-head", lambda n, c: replace(c, row_scale=1) if n == "lm_head" else c
    ),
    # biases
    _term("biases left out", "bias-all", "shifted", lambda self, y, bias: y),
    _term("biases of lora_only left out", "bias-lora-only", "shifted", lambda self, y, bias: y),
    _term("biases of B left out", "lora-bias", "shifted", lambda self, y, bias: y),
    _each(
        "biases of modules without low rank left out", "bias-all", lambda n, c: c if len(c.a) else replace(c, bias=None)
    ),
    # ends of the model
    _term("embedding not changed", "embedding", "adapt_embedding", lambda self, x, tokens: x),
    _term("embedding not replaced", "saved", "adapt_embedding", lambda self, x, tokens: x),
    _term("tied embedding not replaced", "saved-embedding", "adapt_embedding", lambda self, x, tokens: x),
    _whole("head not replaced", "saved", lambda adapter: replace(adapter, head=None)),
    _whole("tied head not replaced", "saved-head", lambda adapter: replace(adapter, head=None)),
    _whole("the head's replacement as embedding too", "saved-head", lambda a: replace(a, embed=a.head.weight)),
    _each("head not changed", "head", _without("lm_head")),
    _term("rows of the head as before sampling", "head", "sampled_rows", lambda self, rows, samples: rows),
    *(
        _whole(
            f"{norm} not replaced",
            "saved",
            lambda a, norm=norm: replace(a, norms={n: w for n, w in a.norms.items() if norm not in n}),
        )
        for norm in ("model.norm", "layers.0.input_layernorm", "layers.2.post_attention_layernorm")
    ),
)
