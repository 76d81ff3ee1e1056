"""The policy in an engine: chosen by name, set in a manifest, and no token depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import caches
import pytest
import tiny_adapter
import tiny_model
from infeng_fair.counts import Counts

from infeng_core.api import Engine, ManifestError, Request, SamplingParams
from infeng_core.cli import main

PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))
    yield


def engine(model: Path, **settings: Any) -> Engine:
    overrides = {"threads.count": 1, **{key.replace("__", "."): value for key, value in settings.items()}}
    return Engine(model, overrides=overrides)


@pytest.mark.parametrize("blocks", [None, 9])
def test_tokens_equal_those_under_first_come_and_each_tenant_is_counted(tiny: Path, tmp_path: Path, blocks: int | None):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    settings: dict[str, Any] = {"adapters__paths": paths, "scheduler__max_running": 3}
    requests = [
        Request(
            tuple([5 + i] * (20 + i)), PARAMS, tenant="greedy" if i % 4 else "other", adapter=[None, "a", "b"][i % 3]
        )
        for i in range(12)
    ]
    with engine(tiny, **settings) as made:
        expected = [one.token_ids for one in made.generate(requests)]
        block = made.executable.kv_bytes // made.limits.kv_blocks
    if blocks is not None:
        settings["kv_cache__memory"] = blocks * block
    with engine(tiny, scheduler__use="fair", fair__tenants={"other": "2@interactive"}, **settings) as made:
        assert [one.token_ids for one in made.generate(requests)] == expected
        counts = made.scheduler.policy.counts()
        assert made.scheduler.free_blocks == made.scheduler.pool.total
    tenants: dict[str, Counts] = dict(counts["tenants"])
    assert tenants.keys() == {"greedy", "other"}
    for name, found in tenants.items():
        own = [request for request in requests if request.tenant == name]
        assert (found.requests, found.waiting, found.running) == (len(own), 0, 0)
        assert found.new_tokens == 12 * len(own)
        assert found.prompt_tokens + found.cached_tokens == sum(len(request.prompt) for request in own)
    by_adapter = counts["adapters"]
    assert {name: found.requests for name, found in by_adapter.items()} == {"": 4, "a": 4, "b": 4}
    assert sum(found.new_tokens for found in by_adapter.values()) == 12 * 12


def test_a_cancelled_request_leaves_nothing_behind(tiny: Path):
    with engine(tiny, scheduler__use="fair", scheduler__max_running=1) as made:
        first, second = (made.submit(Request("x", PARAMS, tenant=name)) for name in "ab")
        made.step()
        first.cancel()
        second.cancel()
        made.step()
        counts = made.scheduler.policy.counts()["tenants"]
        assert {name: (found.waiting, found.running) for name, found in counts.items()} == {"a": (0, 0), "b": (0, 0)}
        assert made.generate("x", PARAMS)[0].usage.completion_tokens == 12


def test_the_command_line_selects_the_policy(tiny: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["run", str(tiny), "-p", "x", "-n", "3", "-t", "1", "--set", "scheduler.use=fair"]
    assert main([*arguments, "--set", "fair.tenants=gold=4@interactive,batch=1@bulk"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--set", "fair.tenants.gold=4@fast"]) != 0
    assert "fair.tenants.gold: there is no tier 'fast'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fair__tenants": {"a": "0"}}, "fair.tenants.a: '0' is not a weight above 0"),
        ({"fair__tenants": {"a": "1e9"}}, "fair.tenants.a: '1e9' is not a weight above 0"),
        ({"fair__tenants": {"a": "9999999"}}, "fair.tenants.a: a weight of 1e+07: it is at most 1e+06"),
        ({"fair__tenants": {"a": "1@bluk"}}, "fair.tenants.a: there is no tier 'bluk': did you mean `bulk`"),
        ({"fair__others": "1"}, "fair.others: there is no tier ''"),
        ({"fair__tiers": {"standard": "soon"}}, "fair.tiers.standard: 'soon' is not milliseconds above 0"),
        ({"fair__tiers": {"standard": "5/"}}, "fair.tiers.standard: '' is not milliseconds above 0"),
        ({"fair__tiers": {}}, "fair.tiers: no tier is left"),
        ({"fair__quantum": 0}, "out of range"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(tiny: Path, settings: dict[str, Any], said: str):
    with pytest.raises(ManifestError) as caught:
        engine(tiny, scheduler__use="fair", **settings)
    assert said in str(caught.value)
