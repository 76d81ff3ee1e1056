"""The cost model of steps: the time of a step from its contents, fitted to measured steps of one engine on one machine.

    seconds = base(rows) + single * context of single rows + attended * context of other rows + sampled * samples

``base`` is piecewise linear in the number of rows: a few rows cost little more than one, since the weights are read
once; hundreds of rows cost in proportion to their number. ``context`` is the sum of the positions that each row attends
to; rows of a prompt share their reads of the cache, decoding rows do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_bench.reports import results
from infeng_core.api import UsageError
from infeng_core.api.engines import Batch

SCHEMA = "infeng-step-costs/1"
DEFAULT = "stepcosts.json"
KNOTS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)

PASSES = 4
MOST_DISTURBED = 3.0


class Step(NamedTuple):
    """The contents of a step that determine its time."""

    rows: int
    single: int  # sum of the positions attended to by rows that are their sequence's only one
    attended: int  # sum of the positions attended to by all other rows
    samples: int
    adapters: int = 0  # different sets of adapters

    @staticmethod
    def of(batch: Batch) -> Step:
        """Return the contents of a batch."""
        single = attended = samples = 0
        for _, begin, end, pos0, sampled, _ in batch.segments:
            rows = end - begin
            if rows == 1:
                single += pos0 + 1
            else:
                attended += rows * pos0 + rows * (rows + 1) // 2
            samples += sampled
        adapters = len({(one.row_begin, one.row_end) for one in batch.adapters})
        return Step(batch.segments[-1].row_end, single, attended, samples, adapters)


@dataclass(frozen=True)
class StepCosts:
    """The model's coefficients in seconds."""

    base: Mapping[int, float]  # number of rows, ascending -> seconds of a step without context
    single: float  # per position of a single row
    attended: float  # per position of another row
    sampled: float  # per sampled row
    adapter: float = 0.0  # per set of adapters in a step
    adapter_load: float = 0.0  # to load an adapter
    source: str = ""  # of the coefficients, for people
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The measurement: model, format, threads, machine, quality of the fit."""

    def seconds(self, step: Step) -> float:
        """Return the seconds of a step."""
        return (
            float(np.interp(step.rows, list(self.base), list(self.base.values())))
            + max(0, step.rows - max(self.base)) * self._slope
            + self.single * step.single
            + self.attended * step.attended
            + self.sampled * step.samples
            + self.adapter * step.adapters
        )

    def table(self, most: int) -> list[float]:
        """Return ``base`` of 0 to ``most`` rows as a list, extrapolated beyond the last point."""
        rows = np.arange(most + 1)
        found: list[float] = np.interp(rows, list(self.base), list(self.base.values())).tolist()
        last = max(self.base)
        return [value + max(0, n - last) * self._slope for n, value in enumerate(found)]

    @property
    def _slope(self) -> float:
        """Seconds per row beyond the last point."""
        if len(self.base) < 2:
            return 0.0
        (low, before), (high, after) = list(self.base.items())[-2:]
        return (after - before) / (high - low)

    def capacity(self, prompt: float, new: float, running: int, rows: int) -> float:
        """Return the requests per second of an engine with a full batch.

        prompt, new: mean tokens of a request. running: sequences of the batch. rows: most of one step. A request costs
        its share of the steps in which it decodes, and the rows of its prompt at the cost per row of a full step.
        """
        decode = self.seconds(Step(running, round(running * (prompt + new / 2)), 0, running)) / running
        full = self.seconds(Step(rows, 0, round(rows * prompt / 2), 0)) - self.seconds(Step(1, 0, 0, 0))
        return 1.0 / (max(0.0, new - 1) * decode + prompt * full / max(1, rows - 1))

    def scaled(self, factor: float, source: str) -> StepCosts:
        """Return the costs of a model whose steps take ``factor`` times as long."""
        return replace(
            self,
            base={rows: value * factor for rows, value in self.base.items()},
            single=self.single * factor,
            attended=self.attended * factor,
            sampled=self.sampled * factor,
            adapter=self.adapter * factor,
            adapter_load=self.adapter_load * factor,
            source=source,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which ``from_dict`` reads."""
        data = asdict(self)
        data["base"] = [[rows, value] for rows, value in self.base.items()]
        return {"schema": SCHEMA, **data}

    @staticmethod
    def from_dict(data: Any) -> StepCosts:
        """Read the form of ``to_dict``; raises KeyError, TypeError or ValueError for another form."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"its form is {data['schema']}, this version reads {SCHEMA}")
        base = {int(rows): float(value) for rows, value in data["base"]}
        numbers = {name: float(data[name]) for name in ("single", "attended", "sampled", "adapter", "adapter_load")}
        if not base or list(base) != sorted(base) or min(*base.values(), *numbers.values()) < 0:
            raise ValueError("numbers of rows must ascend, and no cost may be below 0")
        return StepCosts(base, **numbers, source=str(data["source"]), facts=dict(data["facts"]))

    def write(self, path: str | Path) -> None:
        """Write a file for ``read``; raises ResourceError if it cannot be written."""
        results.write(path, self.to_dict())

    @staticmethod
    def read(path: str | Path) -> StepCosts:
        """Read a file of ``write``; raises UsageError for another file."""
        try:
            return StepCosts.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(str(path), error.strerror or str(error), "give a file of step costs") from error
        except (ValueError, KeyError, TypeError) as error:
            remedy = "give a file written by infeng bench serve --fit"
            raise UsageError(str(path), f"has no step costs ({error})", remedy) from error


def default() -> StepCosts:
    """Return the costs shipped with this wheel; ``facts`` names their model, machine and date."""
    text = resources.files("infeng_bench").joinpath(DEFAULT).read_text(encoding="utf-8")
    return StepCosts.from_dict(json.loads(text))


def fit(measured: Iterable[tuple[Step, float]], source: str, facts: Mapping[str, Any]) -> StepCosts:
    """Fit the costs to measured steps by least squares of relative errors, with no coefficient below 0.

    Times are capped at MOST_DISTURBED times those of equal steps, for disturbances such as the first use of a kernel.
    ``facts`` gets ``steps``, ``shapes`` and ``median_error``, the median relative error of the shapes.
    Raises UsageError without steps.
    """
    groups: dict[Step, list[float]] = {}
    for step, seconds in measured:
        groups.setdefault(step, []).append(seconds)
    if not groups:
        raise UsageError("step costs", "no step was measured", "let the engine run some requests")
    steps = list(groups)
    times = np.array([_typical(groups[step]) for step in steps])
    knots = _knots([step.rows for step in steps])
    columns = np.column_stack([_hats([step.rows for step in steps], knots), [step[1:] for step in steps]])
    expected = times
    for _ in range(PASSES):  # errors are relative to expected times: relative to measured ones, slow steps count less
        wanted = np.minimum(times, MOST_DISTURBED * expected)
        found = _least_squares(columns / expected[:, None], wanted / expected)
        expected = np.maximum(columns @ found, times.min() / 10)
    base = np.maximum.accumulate(found[: len(knots)])
    single, attended, sampled, adapter = found[len(knots) :].tolist()
    costs = StepCosts(dict(zip(knots, base.tolist(), strict=True)), single, attended, sampled, adapter, source=source)
    errors = [abs(costs.seconds(step) / seconds - 1) for step, seconds in zip(steps, times, strict=True)]
    count = sum(map(len, groups.values()))
    return replace(
        costs, facts={**facts, "steps": count, "shapes": len(steps), "median_error": float(np.median(errors))}
    )


def _typical(seconds: Sequence[float]) -> float:
    """Return the mean of the times of equal steps, each capped at MOST_DISTURBED times their median."""
    return float(np.minimum(seconds, MOST_DISTURBED * np.median(seconds)).mean())


def _knots(rows: Sequence[int]) -> list[int]:
    """Return the numbers of rows with a point of ``base``: those that are nearest to some measured step."""
    low, high = min(rows), max(rows)
    inner = [knot for knot in KNOTS if low < knot < high]
    wanted = [low, *inner, high] if high > low else [low]
    return [knot for k, knot in enumerate(wanted) if any(_is_near(n, k, wanted) for n in rows)]


def _is_near(rows: int, place: int, knots: Sequence[int]) -> bool:
    """Return whether ``rows`` is nearer to the knot at ``place`` than to its neighbours."""
    below = (knots[place - 1] + knots[place]) / 2 if place else 0
    above = (knots[place] + knots[place + 1]) / 2 if place + 1 < len(knots) else rows
    return below <= rows <= above


def _hats(rows: Sequence[int], knots: Sequence[int]) -> NDArray[np.float64]:
    """Return the interpolation weight of each knot in each step, (steps, knots)."""
    return np.column_stack([np.interp(rows, knots, np.eye(len(knots))[k]) for k in range(len(knots))])


def _least_squares(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares without negative weights: drop the most negative column and solve again."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-30)
    kept = [k for k in range(columns.shape[1]) if columns[:, k].any()]
    while True:
        found = np.linalg.lstsq(columns[:, kept] / scale[kept], wanted, rcond=None)[0]
        if not kept or found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    weights = np.zeros(columns.shape[1])
    weights[kept] = found / scale[kept]
    return weights
