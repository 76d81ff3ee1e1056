"""A mixture of experts on a device and on the host: the settings of the split (native/program/split.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core import _native
from infeng_core.record import Record

if TYPE_CHECKING:
    from infeng_core.kernels.choice import Selector


class Split(Record):
    """How experts are divided between a device and the host, anew in each step; results are the same on both."""

    memory: int
    """Bytes for copies of experts on the device; -1: most of what it leaves free."""
    host: tuple[float, float]
    """Bytes and multiply-adds a second that the host reaches over experts."""
    device: tuple[float, float]
    """The same of the device, over copies in its memory."""
    link: float
    """Bytes a second from the host to the device."""
    handoff: float
    """Seconds that a layer takes to bring rows to the host and results back."""
    seed: int | None = None
    """Draws the side of every expert at random instead, for tests."""


class HostExperts(Record):
    """A split, and the selector of the kernels with which the host computes its experts."""

    split: Split
    selector: Selector

    def prepare(self, program: _native.Program) -> None:
        """Split a program that has no ops yet."""
        split = self.split
        program.split(
            memory=split.memory,
            host=split.host,
            device=split.device,
            link=split.link,
            handoff=split.handoff,
            seed=split.seed,
        )
