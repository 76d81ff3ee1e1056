"""A logit processor that a plugin brings, over HTTP: the example of the documentation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_parts import Running, connected, demo_model, posted, read_until, running, settings_of

from infeng_core.api import UsageError

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "logits"
OVERRIDES = {"plugins.paths": [str(EXAMPLE / "infeng_choice" / "plugin.yaml")]}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server that offers the example's processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        with running(overrides=OVERRIDES, logit_processors=("choice",)) as found:
            yield found
        sys.modules.pop("infeng_choice", None)


def answer(server: Running, path: str, **body: Any) -> dict[str, Any]:
    with connected(server.address) as opened:
        opened.sendall(posted(path, body, "connection: close"))
        found: dict[str, Any] = json.loads(read_until(opened, b"never").partition(b"\r\n\r\n")[2])
        return found


def test_clients_name_a_processor_that_the_server_offers(server: Running):
    named = {"logit_processors": {"choice": ["yes", "no"]}}
    assert answer(server, "/v1/completions", prompt="Is it?", **named)["choices"][0]["text"] in ("yes", "no")
    turns = [{"role": "user", "content": "Is it?"}]
    found = answer(server, "/v1/chat/completions", messages=turns, **named)["choices"][0]
    assert found["message"]["content"] in ("yes", "no") and found["finish_reason"] == "stop"
    assert answer(server, "/v1/responses", input="Is it?", **named)["output"][0]["content"][0]["text"] in ("yes", "no")


def test_an_argument_that_a_processor_refuses_is_an_error_with_its_path(server: Running):
    error = answer(server, "/v1/completions", prompt="Is it?", logit_processors={"choice": 7})["error"]
    assert (error["param"], error["type"]) == ("logit_processors.choice", "invalid_request_error")
    error = answer(server, "/v1/completions", prompt="Is it?", logit_processors={"grammar": {"regex": "a"}})["error"]
    assert error["param"] == "logit_processors.grammar" and "it offers choice" in error["message"]


@pytest.mark.parametrize("name", ["penalties", "unknown"])
def test_a_processor_that_no_plugin_provides_cannot_be_offered(name: str):
    with pytest.raises(UsageError, match="no plugin brings it"):
        demo_model(settings_of(logit_processors=(name,)), None)
