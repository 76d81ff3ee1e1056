"""Adapters of parameters: PEFT's ``target_parameters`` for the matrices of all experts in one parameter.

``peft/tuners/lora/layer.py``, ``ParamWrapper``: for a parameter (experts, d1, d2) ``lora_A.weight`` is (experts * r,
p) and ``lora_B.weight`` (q, r * experts), whose columns count experts fastest. Up to PEFT 0.18 p is d1 and q is d2,
so that the product is for the transposed matrix; from 0.19.1 on p is d2 and q is d1, as in a linear layer. Of two
parameters of a module the second wraps the first, whose tensors lie below ``base_layer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.adapters import TargetModule, TargetModules

TURNED_BEFORE, STRAIGHT_FROM = (0, 19), (0, 19, 1)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Parameter:
    """A parameter of shape (experts, rows, k), and the sites of each expert's rows in their order."""

    name: str  # "model.layers.0.mlp.experts.gate_up_proj"
    sites: tuple[tuple[TargetModule, ...], ...]  # (experts, sites)

    @property
    def rows(self) -> int:
        """Outputs of one expert."""
        return sum(site.part.rows for site in self.sites[0])

    @property
    def k(self) -> int:
        """Inputs of one expert."""
        return self.sites[0][0].k

    @property
    def is_turned(self) -> bool:
        """Whether the checkpoint has it as (experts, k, rows)."""
        return any(site.part.each for site in self.sites[0])

    def is_straight(self, a: tuple[int, ...], b: tuple[int, ...], rank: int, version: tuple[int, ...]) -> bool | None:
        """Return whether tensors of these shapes are its A and B (True), or those of its transposed matrices (False).

        None: neither. Raises ValueError if that depends on the version of PEFT, which is unknown.
        """
        stacked = rank * len(self.sites)
        is_straight = (a, b) == ((stacked, self.k), (self.rows, stacked))
        is_turned = (a, b) == ((stacked, self.rows), (self.k, stacked))
        if not (is_straight and is_turned):
            return is_straight if is_straight or is_turned else None
        if not version or TURNED_BEFORE <= version < STRAIGHT_FROM:
            raise ValueError("its matrices are square, and which side is which differs between versions of PEFT")
        return version >= STRAIGHT_FROM

    def factors(self, a: Floats, b: Floats, *, is_straight: bool) -> Iterator[tuple[TargetModule, Floats, Floats]]:
        """Yield each site with its A, (rank, k), and its B, (rows, rank)."""
        count = len(self.sites)
        first = a.reshape(count, -1, a.shape[1])  # (experts, rank, p)
        second = b.reshape(len(b), -1, count)  # (q, rank, experts)
        for expert, sites in enumerate(self.sites):
            own = first[expert], np.ascontiguousarray(second[:, :, expert])
            down, up = own if is_straight else (np.ascontiguousarray(own[1].T), np.ascontiguousarray(own[0].T))
            begin = 0
            for site in sites:
                yield site, down, up[begin : begin + site.part.rows]
                begin += site.part.rows


def parameters(sites: TargetModules) -> Mapping[str, Parameter]:
    """Return the parameters of a model that hold the matrices of all experts, as in new releases of transformers."""
    found: dict[str, list[list[TargetModule]]] = {}
    latest = ""
    for site in sites.matrices.values():
        stack = site.part.stack or site.part
        if not site.is_expert:
            continue
        experts = found.setdefault(stack.source, [])
        if site.tensor != latest:
            experts.append([])
        latest = site.tensor
        experts[-1].append(site)
    return {name: Parameter(name, tuple(map(tuple, experts))) for name, experts in found.items()}
