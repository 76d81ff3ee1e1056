"""Nothing of a packed adapter is idle: with any piece of it missing, moved or scaled, the native logits are wrong.

The adapters of the golden cases are changed one piece at a time, after they were packed, and compared with PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapter_calls import load_adapter
from e2e import harness
from goldens import oracle
from goldens.adapted import ADAPTED, Adapted
from goldens.shapes import CASES, Case

from infeng_core import Engine
from infeng_core.batch import AdapterRows, Batch
from infeng_core.formats.adapters.packed import LoraPart, LoraTensor, PackedAdapter

MARGIN = 10  # times the tolerance
Mutants = Iterator[tuple[str, PackedAdapter]]


def mutants(adapter: PackedAdapter) -> Mutants:
    """Yield the adapter with one thing about it wrong."""
    yield "nothing but its name", replace(adapter, tensors={}, embedding=None, saved_tensors={}, saved_vectors={})
    for name, tensor in adapter.tensors.items():
        rest = {other: kept for other, kept in adapter.tensors.items() if other != name}
        yield f"{name} left out", replace(adapter, tensors=rest)
        for what, wrong in tensor_mutants(tensor) if "1" not in name else ():  # one layer in every detail
            yield f"{name}, {what}", replace(adapter, tensors={**rest, name: wrong})
    if (embedding := adapter.embedding) is not None:
        yield "embedding left out", replace(adapter, embedding=None)
        yield "embedding of the next id", replace(adapter, embedding=replace(embedding, a=rolled(embedding.a, 1)))
        yield "embedding scaled", replace(adapter, embedding=replace(embedding, scaling=embedding.scaling * 1.05))
        for what, part in part_mutants(embedding.part):
            yield f"embedding, {what}", replace(adapter, embedding=replace(embedding, part=part))
    for name in adapter.saved_tensors:
        rest = {other: kept for other, kept in adapter.saved_tensors.items() if other != name}
        yield f"saved {name} left out", replace(adapter, saved_tensors=rest)
    for name, vector in adapter.saved_vectors.items():
        rest = {other: kept for other, kept in adapter.saved_vectors.items() if other != name}
        yield f"saved {name} left out", replace(adapter, saved_vectors=rest)
        yield f"saved {name} turned", replace(adapter, saved_vectors={**rest, name: rolled(vector, 1)})


def tensor_mutants(tensor: LoraTensor) -> Iterator[tuple[str, LoraTensor]]:
    if tensor.rank:
        yield "scaled by 1.05", replace(tensor, scaling=tensor.scaling * np.float32(1.05))
    lines = tensor.a.view(np.float32).reshape(-1, 16)  # a lane for each rank row, or two where they are folded
    if tensor.rank > 1:
        exchanged = lines.copy()
        exchanged[:, [0, 1, 8, 9]] = lines[:, [1, 0, 9, 8]]
        yield "two rows of A exchanged", replace(tensor, a=exchanged.reshape(-1).view(np.uint8))
    if tensor.rank > 16:
        yield "halves of A exchanged", replace(tensor, a=rolled(lines, len(lines) // 2).reshape(-1).view(np.uint8))
    elif 0 < tensor.rank <= 8:
        yield "A unfolded elsewhere", replace(tensor, a=rolled(lines, 8, axis=1).reshape(-1).view(np.uint8))
    for index, part in enumerate(tensor.parts):
        others = tensor.parts[:index], tensor.parts[index + 1 :]
        yield f"part {index} left out", replace(tensor, parts=(*others[0], *others[1]))
        for what, wrong in part_mutants(part):
            yield f"part {index} {what}", replace(tensor, parts=(*others[0], wrong, *others[1]))
        if part.rank and part.u_column:
            yield f"part {index} reads u one column early", shifted(tensor, index, u_column=part.u_column - 1)
        if part.panel_step == 1 and part.first_panel and part.panels > 1:
            yield f"part {index} one panel early", shifted(tensor, index, first_panel=part.first_panel - 1)
        if part.panel_step == 2:
            yield f"part {index} on its neighbour's panels", shifted(tensor, index, first_panel=1 - part.first_panel)


def shifted(tensor: LoraTensor, index: int, **change: int) -> LoraTensor:
    wrong = replace(tensor.parts[index], **change)
    return replace(tensor, parts=(*tensor.parts[:index], wrong, *tensor.parts[index + 1 :]))


def part_mutants(part: LoraPart) -> Iterator[tuple[str, LoraPart]]:
    if part.rank:
        yield "with its outputs turned", replace(part, b=rolled(part.b, 1, axis=2))
    if part.rank > 1:
        yield "with its ranks turned", replace(part, b=rolled(part.b, 1, axis=1))
    if part.rank and part.panels > 1:
        yield "with its panels turned", replace(part, b=rolled(part.b, 1))
    if part.row_scale is not None:
        yield "without magnitudes", replace(part, row_scale=None)
        yield "with magnitudes turned", replace(part, row_scale=rolled(part.row_scale, 1))
    if part.bias is not None:
        yield "without its bias", replace(part, bias=None)
        yield "with its bias turned", replace(part, bias=rolled(part.bias, 1))


def rolled(array: np.ndarray, by: int, axis: int = 0) -> np.ndarray:
    return np.ascontiguousarray(np.roll(array, by, axis=axis))


def run(engine: Engine, case: Adapted, rows: Callable[[int, int], list[AdapterRows]]) -> float:
    """Run the case's prompts in one batch with what ``rows(begin, end)`` says; return the largest error."""
    prompts = case.prompts
    ends = np.cumsum([len(prompt) for prompt in prompts]).tolist()
    begins = [0, *ends[:-1]]
    places = list(zip(prompts, begins, ends, strict=True))
    batch = Batch(
        segments=[],
        tokens=np.concatenate(prompts).astype(np.int32),
        positions=np.concatenate([np.arange(len(prompt)) for prompt in prompts]).astype(np.int32),
        kv_segments=np.array([[begin, end, 0, 3 * i] for i, (_, begin, end) in enumerate(places)], np.int32),
        block_tables=np.arange(9, dtype=np.int32),
        sample_rows=np.concatenate([[b + len(p) // 2, e - 2, e - 1] for p, b, e in places]).astype(np.int32),
        adapters=rows(0, ends[-1]),
    )
    logits = engine.executable.run(batch)
    return float(np.abs(logits - case.expected()["logits"].reshape(logits.shape)).max())


def cases_of(base: Case) -> Mapping[str, Adapted]:
    return {case.name: case for case in ADAPTED if case.base is base}


@pytest.mark.parametrize(
    "base",
    [pytest.param(case, marks=pytest.mark.slow if case.name == "linear" else (), id=case.name) for case in CASES],
)
def test_changing_any_array_of_a_packed_adapter_changes_logits(base: Case, reduced: dict[str, Path]) -> None:
    survivors, seen = [], 0
    settings = {"kernels.order": ["reference"], "kv_cache.memory": "1MB"}
    with harness.engine(reduced[base.name], harness.F32, settings, rows=64) as engine:
        for case in cases_of(base).values():
            if case.combines:
                continue
            packed = load_adapter(case.directory, engine.model, "f32")
            for name, wrong in [("as it is", packed), *mutants(packed)]:
                handle = engine.executable.load_adapter(wrong)
                error = run(engine, case, lambda begin, end, handle=handle: [AdapterRows(begin, end, handle, 1.0)])
                if name == "as it is":
                    assert error <= oracle.TOLERANCE
                    continue
                seen += 1
                if error <= MARGIN * oracle.TOLERANCE:
                    survivors.append(f"{case.name}: {name}")
    assert survivors == []
    assert seen > 15


def test_changing_rows_weights_or_order_of_adapters_changes_logits(reduced: dict[str, Path]) -> None:
    base = CASES[0]
    with harness.engine(reduced[base.name], harness.F32, rows=64) as engine:
        cases = cases_of(base)
        handles = {
            name: handle
            for name in ("lora", "thin", "dora")
            for handle, _ in harness.applied(engine, [(cases[name].directory, 1.0)])
        }

        def error(name: str, *uses: tuple[str, float], first: int = 0, last: int = 0) -> float:
            return run(
                engine,
                cases[name],
                lambda begin, end: [
                    AdapterRows(begin + first, end - last, handles[use], weight) for use, weight in uses
                ],
            )

        assert error("lora", ("lora", 1.0)) <= oracle.TOLERANCE
        assert error("combined", ("lora", 0.5), ("thin", -1.25)) <= oracle.TOLERANCE
        assert error("combined", ("thin", -1.25), ("lora", 0.5)) <= oracle.TOLERANCE  # sums have no order
        assert error("combined-dora", ("lora", 0.5), ("dora", 1.0)) <= oracle.TOLERANCE
        wrong = {
            "another adapter": error("lora", ("thin", 1.0)),
            "no adapter": error("lora"),
            "twice": error("lora", ("lora", 1.0), ("lora", 1.0)),
            "one row late": error("lora", ("lora", 1.0), first=1),
            "one row short": error("lora", ("lora", 1.0), last=1),
            "a weight of 0.95": error("lora", ("lora", 0.95)),
            "weights exchanged": error("combined", ("lora", -1.25), ("thin", 0.5)),
            "DoRA before what it rescales": error("combined-dora", ("dora", 1.0), ("lora", 0.5)),
        }
    assert {name: size for name, size in wrong.items() if size <= MARGIN * oracle.TOLERANCE} == {}
