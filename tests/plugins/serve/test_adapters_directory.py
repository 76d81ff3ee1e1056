"""A server with a folder of adapters: each is a model by its name, in bounded lists and metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from infeng_demo import adapter_dir
from infeng_serve.auth import Keys
from infeng_serve.observability.metrics import Metrics
from infeng_serve.routes import models
from serve_parts import Reply, Running, running

KEYS = "root-key ops * admin\nfew-key acme verse,bard\nall-key beta\n"
COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters among many whose folders are empty, and one that is a link out."""
    path = tmp_path_factory.mktemp("served")
    shutil.copytree(adapter_dir("shakespeare"), path / "many" / "verse")
    shutil.copytree(adapter_dir("python"), path / "many" / "code")
    for number in range(COUNT):
        (path / "many" / f"n{number:02}").mkdir()
    (path / "many" / "out").symlink_to(adapter_dir("python"))
    (path / "keys").write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    overrides = {"adapters.directory": [str(folder / "many")]}
    roots = (str(folder / "many"),)
    with running(keys=Keys(file=folder / "keys"), overrides=overrides, lora_roots=roots) as found:
        yield found


def call(served: Running, key: str, path: str, body: Any = None) -> Reply:
    return served.ask(path, body, authorization=f"Bearer {key}")


def pages(served: Running, key: str, limit: int) -> list[list[str]]:
    """Return the ids of all pages."""
    found: list[list[str]] = []
    after = ""
    while True:
        page = call(served, key, f"/v1/models?limit={limit}{after}").json
        found.append([card["id"] for card in page["data"]])
        if not page["has_more"]:
            assert page["last_id"] is None
            return found
        assert page["last_id"] == found[-1][-1]
        after = f"&after={page['last_id']}"


def text(served: Running, key: str, model: str) -> Any:
    reply = call(served, key, "/tiny", {"prompt": "# Add", "max_tokens": 12, "model": model})
    return reply.json["texts"][0] if reply.status == 200 else reply.status


def test_a_model_of_the_folder_answers_as_the_adapter(served: Running) -> None:
    before = len(served.engine.adapters)
    assert text(served, "all-key", "code") == text(served, "all-key", "coder") != text(served, "all-key", "verse")
    assert len(served.engine.adapters) == before + 2, "those alone that were asked for are remembered"
    assert (text(served, "all-key", "nobody"), text(served, "all-key", "n00"), text(served, "all-key", "out")) == (
        404,
        404,
        400,
    )
    reply = call(served, "all-key", "/tiny", {"prompt": "x", "model": "out"})
    assert str(adapter_dir("python")) not in reply.data.decode()


def test_a_key_may_use_what_it_allows(served: Running) -> None:
    assert isinstance(text(served, "few-key", "verse"), str)
    assert text(served, "few-key", "code") == 404
    listed = [name for page in pages(served, "few-key", 3) for name in page]
    assert listed[-2:] == ["bard", "verse"] and "code" not in listed
    assert call(served, "few-key", "/v1/models/code").status == 404
    assert call(served, "few-key", "/v1/models?after=code").status == 400


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_the_list_has_pages_that_hold_every_model_once(served: Running, limit: int) -> None:
    found = pages(served, "all-key", limit)
    assert all(len(page) <= limit for page in found) and all(len(page) == limit for page in found[:-1])
    names = [name for page in found for name in page]
    assert len(names) == len(set(names))
    assert {"bard", "coder", "verse", "code", "n00", f"n{COUNT - 1:02}"} <= set(names)
    places = [names.index(name) for name in ("bard", "coder", "code", "n00", "verse")]
    assert places == sorted(places), "the loaded ones, then the folder's by name"


def test_an_unbounded_list_is_cut(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_LISTED", 5)
    page = call(served, "all-key", "/v1/models").json
    assert (len(page["data"]), page["has_more"]) == (5, True)
    for query in ("limit=0", "limit=6", "limit=x", "limit=-1", "limit=99999999999999", "after=nobody", "after=%ff",
                  "&".join(f"a{n}=1" for n in range(9))):  # fmt: skip
        assert call(served, "all-key", f"/v1/models?{query}").status == 400, query


def test_one_model_is_described_and_its_path_only_to_admins(served: Running, folder: Path) -> None:
    card = call(served, "all-key", "/v1/models/verse").json
    assert (card["id"], card["root"]) == ("verse", "verse")
    assert call(served, "root-key", "/v1/models/verse").json["root"] == str(folder / "many" / "verse")
    assert call(served, "all-key", "/v1/models/nobody").status == 404


def test_openais_client_lists_and_finds_the_models(served: Running) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="all-key") as client:
        assert {"verse", "code"} <= {model.id for model in client.models.list()}
        assert client.models.retrieve("verse").id == "verse"


def test_a_new_folder_is_found_and_a_removed_one_says_so(served: Running, folder: Path) -> None:
    assert text(served, "all-key", "late") == 404
    shutil.copytree(adapter_dir("python"), folder / "many" / "late")
    assert text(served, "all-key", "late") == text(served, "all-key", "coder")
    shutil.rmtree(folder / "many" / "late")
    assert text(served, "all-key", "late") == 404
    assert "late" not in {name for page in pages(served, "all-key", 100) for name in page}


def test_names_of_the_folder_are_taken_and_stay(served: Running) -> None:
    loaded = call(served, "all-key", "/v1/load_lora_adapter", {"lora_name": "verse", "lora_path": "code"})
    assert (loaded.status, loaded.json["error"]["message"]) == (
        400,
        "The lora adapter 'verse' has already been loaded.",
    )
    for key in ("all-key", "root-key"):
        refused = call(served, key, "/v1/unload_lora_adapter", {"lora_name": "verse"})
        assert (refused.status, refused.json["error"]["param"]) == (403, "lora_name")
    assert isinstance(text(served, "all-key", "verse"), str)


def test_a_tenants_own_adapter_is_not_found_by_the_engines_name(served: Running) -> None:
    assert call(served, "all-key", "/v1/load_lora_adapter", {"lora_name": "own", "lora_path": "code"}).status == 200
    inner = next(name for name in served.engine.adapters if name.startswith("own."))
    assert (text(served, "few-key", inner), text(served, "root-key", inner)) == (404, 404)
    assert inner not in {name for page in pages(served, "root-key", 100) for name in page}
    call(served, "all-key", "/v1/unload_lora_adapter", {"lora_name": "own"})


def test_metrics_have_a_bounded_number_of_adapters(served: Running) -> None:
    for name in ("verse", "code", "verse"):
        text(served, "all-key", name)
    lines = Metrics(served.engine, "demo", most_adapters=1).render(openmetrics=False).decode().splitlines()
    loaded = [line for line in lines if line.startswith("infeng:lora_adapter_loaded{")]
    assert len(loaded) == 2 and any('adapter_name="other"' in line for line in loaded)
    counts = [float(line.rpartition(" ")[2]) for line in lines if "lora_adapter_load_seconds_count{" in line]
    assert sum(counts) == served.engine.adapters.totals().loads
    assert json.dumps(loaded).count("n0") == 0
