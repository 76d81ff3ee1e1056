"""Each field of a request is checked once, at its creation, so that policies see only valid values."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

import pytest

from infeng_core.errors import RequestError
from infeng_core.requests.checks import MOST_ADAPTERS, MOST_CHARACTERS
from infeng_core.requests.request import Request, SamplingParams


class Hostile:
    """An object of a caller's own that fails however it is used."""

    def __repr__(self) -> str:
        raise OSError("repr")

    def __index__(self) -> int:
        raise OSError("index")

    def __float__(self) -> float:
        raise OSError("float")

    def __bool__(self) -> bool:
        raise OSError("bool")


VALUES = [None, 10**400, -(10**5000), "text", "\ud800", "x" * 10**6, b"bytes", 1.5, float("nan"), True, (), [], {}, {1},
          object(), Hostile(), [None], [[[]]], itertools.count(), SamplingParams, 2**31, 2**63]  # fmt: skip


def is_refused_or_right(make: Any, name: str, value: Any) -> bool:
    """Return whether ``make`` refused ``value`` by the name of its field, or took it."""
    if isinstance(value, itertools.count):
        value = itertools.count()  # which the field before has eaten of
    try:
        make(**{name: value})
    except RequestError as error:
        assert str(error)
        assert len(str(error)) < 4000
        return True
    return False


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_a_sampling_parameter_of_any_type_is_taken_or_refused_by_name(name: str):
    refused = [is_refused_or_right(SamplingParams, name, value) for value in VALUES]
    assert sum(refused) >= 3 or name == "processors"


@pytest.mark.parametrize("name", [field.name for field in fields(Request) if field.name != "prompt"])
def test_a_field_of_a_request_of_any_type_is_taken_or_refused_by_name(name: str):
    refused = [is_refused_or_right(lambda **given: Request("text", **given), name, value) for value in VALUES]
    assert sum(refused) >= 15


@pytest.mark.parametrize(
    "value", [v for v in VALUES if not isinstance(v, itertools.count)], ids=lambda v: type(v).__name__
)
def test_a_prompt_of_any_type_is_taken_or_refused(value: Any):
    is_refused_or_right(lambda prompt: Request(prompt), "prompt", value)


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "priority": [None, "high", 1.5, True, 10**400, 2**31, -(2**31)],
        "tenant": [None, 3, b"t", "x" * (MOST_CHARACTERS + 1), "\ud800"],
        "cache_salt": [None, 3, "x" * (MOST_CHARACTERS + 1), "\udfff"],
        "timeout": ["1", -1, float("inf"), float("nan"), 10**400, True],
        "adapter": ["", 3, [], [("a",)], [("a", "1")], [("a", float("nan"))],
                    [(f"a{i}", 1.0) for i in range(MOST_ADAPTERS + 1)]],
        "parse_special": [1, "yes"],
        "params": [None, {}],
    }.items(),
)  # fmt: skip
def test_a_field_that_no_policy_could_use_is_refused(field: str, values: list[Any]):
    for value in values:
        with pytest.raises(RequestError, match=field):
            Request("text", **{field: value})


@pytest.mark.parametrize("field", ["ignore_eos", "logits", "skip_special_tokens"])
def test_a_flag_is_true_or_false(field: str):
    with pytest.raises(RequestError, match=f"{field}: 'no' is neither true nor false"):
        SamplingParams(**{field: "no"})


def test_usual_values_are_accepted():
    request = Request([1, 2], priority=-3, tenant="t", cache_salt="s" * MOST_CHARACTERS, timeout=1, adapter=[("a", 2)])
    assert (request.prompt, request.timeout, request.adapter) == ((1, 2), 1.0, (("a", 2.0),))
