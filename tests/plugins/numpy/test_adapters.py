"""The NumPy model with adapters gives what transformers and PEFT give, on its own, without the engine.

And every term of an adapter counts: with any one of them missing or wrong, the comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from goldens import oracle, peft_files
from goldens.adapted import ADAPTED, Adapted
from goldens.adapter_mutants import MUTANTS, AdapterMutant
from infeng_numpy.adapter import Rows
from infeng_numpy.llama import Llama
from numpy.typing import NDArray

MARGIN = 10  # times the tolerance

by_name = pytest.mark.parametrize("case", ADAPTED, ids=lambda case: case.name)


def logits(
    case: Adapted, kind: type[Llama] = Llama, spoil: Callable[[Sequence[Rows]], list[Rows]] = list
) -> NDArray[np.float64]:
    """Run the case's prompts in one batch, between prompts of the base; returns (prompts, 3, vocab)."""
    tensors = dict(case.base.tensors())
    prompts = [case.prompts[2], *case.prompts, case.prompts[0]]
    ends = np.cumsum([len(prompt) for prompt in prompts]).tolist()
    begins = [0, *ends[:-1]]
    rows = [Rows(begins[1], ends[3], peft_files.read(path, tensors), weight) for path, weight in case.adapters]
    sampled = [(begin + (end - begin) // 2, end - 2, end - 1) for begin, end in zip(begins, ends, strict=True)]
    out = oracle.model(case.base, kind).forward(
        np.concatenate(prompts).astype(np.int32),
        np.concatenate([np.arange(len(prompt)) for prompt in prompts]).astype(np.int32),
        np.array([[begin, end, 0, 4 * i] for i, (begin, end) in enumerate(zip(begins, ends, strict=True))], np.int32),
        oracle.TABLE,
        np.concatenate(sampled).astype(np.int32),
        spoil(rows),
    )
    return out.reshape(len(prompts), 3, -1)[1:4]


def error(case: Adapted, *how: object) -> float:
    return float(np.abs(logits(case, *how) - case.expected()["logits"]).max())


@by_name
def test_logits_in_a_batch_with_base_rows_equal_those_of_peft(case: Adapted) -> None:
    assert case.expected()["logits"].std() >= 1
    assert error(case) <= oracle.TOLERANCE


@by_name
def test_goldens_do_not_depend_on_rounding(case: Adapted) -> None:
    assert case.expected()["lead"].min() > 10 * oracle.TOLERANCE


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_changed_term_changes_the_logits(mutant: AdapterMutant) -> None:
    assert error(mutant.case, mutant.model, mutant.spoil) > MARGIN * oracle.TOLERANCE


def test_another_adapter_gives_other_logits() -> None:
    """Adapters of the same base are told apart."""
    lora, thin = (case for case in ADAPTED if case.name in ("lora", "thin"))
    swapped = [Rows(0, 0, peft_files.read(thin.directory, dict(thin.base.tensors())))]
    wrong = logits(lora, Llama, lambda rows: [swapped[0]._replace(begin=r.begin, end=r.end) for r in rows])
    assert np.abs(wrong - lora.expected()["logits"]).max() > MARGIN * oracle.TOLERANCE
