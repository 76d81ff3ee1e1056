"""What an engine is asked to do, as a text and back."""

import pytest
from infeng_bench.engine.work import Work

from infeng_core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("decode:rows=1,context=1024", Work("decode", 1, 1024, 32)),
        ("decode:context=5,rows=2,steps=3", Work("decode", 2, 5, 3)),
        ("decode", Work("decode", 1, 1024, 32)),
        ("prefill:rows=4,context=1024", Work("prefill", 4, 1024, 32)),
    ],
)
def test_a_work_survives_a_round_trip_through_text(text: str, work: Work) -> None:
    assert Work.parse(text) == work
    assert Work.parse(str(work)) == work


def test_the_canonical_text_omits_the_default_steps() -> None:
    assert str(Work.parse("decode:context=7,rows=2")) == "decode:rows=2,context=7"
    assert str(Work.parse("decode:context=7,rows=2,steps=9")) == "decode:rows=2,context=7,steps=9"
    assert str(Work.parse("prefill:context=7")) == "prefill:rows=1,context=7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decod:rows=1", "did you mean `decode`"),
        ("", "known here: decode, prefill"),
        ("decode:row=1", "did you mean `rows`"),
        ("prefill:steps=3", "prefill has no 'steps'"),
        ("decode:rows=0", "whole number from 1"),
        ("decode:rows=-1", "whole number from 1"),
        ("decode:rows=1e3", "whole number from 1"),
        ("decode:rows=99999999999", "whole number from 1"),
        ("decode:rows", "rows is ''"),
        ("decode:rows=1,rows=2", "given twice"),
        ("decode:rows=1,,context=2", "decode has no ''"),
    ],
)
def test_a_bad_text_is_an_error_that_helps(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Work.parse(text)
    assert said in str(caught.value)


def test_tokens_and_positions_of_a_work_are_counted() -> None:
    assert Work.parse("decode:rows=3,context=100,steps=8").tokens == 24
    assert Work.parse("decode:rows=3,context=100,steps=8").positions == 109
    assert Work.parse("prefill:rows=3,context=100").tokens == 300


def test_prompts_differ_by_seed_and_row_and_repeat() -> None:
    work = Work.parse("prefill:rows=3,context=50")
    prompts = work.prompts(7, vocab=1000)
    assert [len(prompt) for prompt in prompts] == [50, 50, 50]
    assert len({tuple(prompt) for prompt in [*prompts, *work.prompts(8, vocab=1000)]}) == 6
    assert work.prompts(7, vocab=1000) == prompts
    assert all(3 <= token < 1000 for prompt in prompts for token in prompt)
