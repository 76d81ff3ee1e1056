"""An adapter held in memory for batches that the caller makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import adapter_dir, model_dir

from infeng_core import Engine
from infeng_core.api import RequestError, ResourceError, UsageError

IDS = [5, 6, 7]


@pytest.fixture
def engine() -> Iterator[Engine]:
    settings = {"threads.count": 1, "adapters.max_resident": 1}
    with Engine(str(model_dir()), overrides=settings) as made:
        yield made


@pytest.mark.slow
def test_a_held_adapter_is_loaded_and_stays_until_the_block_ends(engine: Engine) -> None:
    engine.adapters.load("bard", str(adapter_dir("shakespeare")))
    assert engine.adapters["bard"].state != "resident"
    with engine.adapters.held("bard", IDS) as held:
        assert len(held.rows) == 1 and held.rows[0][1] == 1.0 and not held.begins
        assert engine.adapters["bard"].state == "resident" and engine.adapters["bard"].references == 1
        engine.adapters.unload("bard")
        assert held.rows[0][0].nbytes > 0
    assert not held.rows
    assert "bard" not in engine.adapters


@pytest.mark.slow
def test_it_is_given_back_after_an_error(engine: Engine) -> None:
    engine.adapters.load("bard", str(adapter_dir("shakespeare")))
    with pytest.raises(ZeroDivisionError), engine.adapters.held("bard", IDS):
        raise ZeroDivisionError
    assert engine.adapters["bard"].references == 0
    engine.adapters.load("coder", str(adapter_dir("python")))
    with engine.adapters.held("coder", IDS):  # which takes its room
        assert engine.adapters["bard"].state != "resident"


@pytest.mark.slow
def test_what_cannot_be_held_is_an_error(engine: Engine) -> None:
    with pytest.raises(RequestError, match="no adapter of that name"), engine.adapters.held("none", IDS):
        raise AssertionError("it was held")
    engine.adapters.load("bard", str(adapter_dir("shakespeare")))
    engine.adapters.load("coder", str(adapter_dir("python")))
    with engine.adapters.held("bard", IDS):
        with pytest.raises(ResourceError), engine.adapters.held("coder", IDS):
            raise AssertionError("there was no room")
        assert engine.adapters["coder"].references == 0
    engine.close()
    with pytest.raises(UsageError), engine.adapters.held("bard", IDS):
        raise AssertionError("it was held")
