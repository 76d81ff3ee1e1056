"""When requests come in and how long they are."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from infeng_bench.load.arrivals import Arrival, Lengths, trace

from infeng_core.errors import UsageError


@pytest.mark.parametrize("text", ["512", "1", "128:1024", "lognormal:256:0.8"])
def test_a_distribution_survives_a_round_trip(text: str) -> None:
    assert str(Lengths.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "0", "5:", "a:b", "9:3", "1:2:3", "lognormal:256", "lognormal:0:1", "lognormal:9:0"]
)
def test_an_invalid_distribution_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is no distribution"):
        Lengths.parse(text)


def test_lengths_stay_within_their_bounds() -> None:
    rng = np.random.default_rng(0)
    assert set(Lengths.parse("3:5").sample(rng, 200, 100)) == {3, 4, 5}
    assert set(Lengths.parse("3:5").sample(rng, 200, 4)) == {3, 4}
    drawn = Lengths.parse("lognormal:100:0.5").sample(rng, 2000, 10**6)
    assert statistics.median(drawn) == pytest.approx(100, rel=0.1)
    assert min(drawn) >= 1


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00.0000000,9,1
"""


def test_a_trace_gives_arrival_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    found = trace(path, 2, 2.0, 400)
    assert [(one.prompt, one.new) for one in found] == [(374, 26), (396, 4)]  # cut to the context of 400
    assert found[0].at == 0
    assert found[1].at == pytest.approx((50.995169 - 46.68059) / 2, abs=1e-5)
    path.write_text("arrival,prompt_tokens,output_tokens\n2.5,7,3\n1.5,0,0\n")
    assert trace(path, 9, 1.0, 100) == [Arrival(0.0, 1, 1), Arrival(1.0, 7, 3)]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a,b,c\n1,2,3\n", "does not name the columns"),
        ("", "does not name the columns"),
        ("arrival,prompt_tokens,output_tokens\n", "it has no request"),
        ("arrival,prompt_tokens,output_tokens\n1,-5,2\n", "negative length"),
        ("arrival,prompt_tokens,output_tokens\n1,x,2\n", "cannot be read as a trace"),
        ("arrival,prompt_tokens,output_tokens\n1,2\n", "cannot be read as a trace"),
        ("arrival,prompt_tokens,output_tokens\nsoon,2,2\n", "cannot be read as a trace"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=text):
        trace(path, 9, 1.0, 100)
