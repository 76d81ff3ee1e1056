"""No stream goes on with other bytes: a journal says what its answers were computed with, and who differs refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir, model_dir
from infeng_serve import fingerprint, generating
from infeng_serve.journal import Entry, Journal
from infeng_serve.model import Model, load
from infeng_serve.settings import Settings
from serve_parts import Running, running
from stream_parts import frames, rest, story, texts

from infeng_core.api import __version__, load_config

BEFORE = {"infeng-core": "1.0", "model": "5" * 64, "numerics": "exact"}


def entry(number: int) -> Entry:
    return Entry(f"id{number}", "/v1/completions", "t", 1000, b"{}", (number,))


def journal(directory: Path | None, what: dict[str, str], **given: Any) -> tuple[Journal, int]:
    made = Journal(directory, clock=lambda: 1000.0, **given)
    made.read()
    return made, made.begin(what)


# ------------------------------------------------------------------------------------------------------- its files ---


def test_a_process_with_the_same_fingerprint_resumes_and_another_names_the_change(tmp_path: Path):
    first, _ = journal(tmp_path, BEFORE)
    first.add(entry(1))
    first.close()
    now = {**BEFORE, "infeng-core": "2.0", "model": "6" * 64, "cache": "int8"}
    for what, count, changes in (
        (BEFORE, 0, {}),
        (now, 1, {"infeng-core": "infeng-core was 1.0 and is 2.0",
                  "model": "model was 555555555555 and is 666666666666",
                  "cache": "cache was not recorded and is int8"}),
    ):  # fmt: skip
        other, others = journal(tmp_path, what)
        found = other.find("t", "id1")
        assert found is not None
        assert (others, other.changes(found)) == (count, changes)
        other.close()


def test_every_file_begins_with_its_fingerprint_once(tmp_path: Path):
    first, _ = journal(tmp_path, BEFORE, most_bytes=40_000)
    for number in range(60):
        first.add(Entry(f"id{number}", "/v1/completions", "t", 1000, b"x" * 1000, (number,)))
    first.close()
    files = sorted(tmp_path.glob("*.journal"))
    assert len(files) > 1 and sum(path.stat().st_size for path in files) <= 40_000
    for path in files:
        lines = [json.loads(line[9:]) for line in path.read_bytes().splitlines()]
        assert lines[0] == {"basis": BEFORE} and all("id" in line for line in lines[1:])


@pytest.mark.parametrize("damage", ["head", "older"])
def test_calls_with_an_unknown_fingerprint_are_refused(tmp_path: Path, damage: str):
    first, _ = journal(tmp_path, BEFORE if damage == "head" else {})  # an older version wrote no fingerprint
    first.add(entry(1))
    first.close()
    if damage == "head":
        [path] = tmp_path.glob("*.journal")
        path.write_bytes(path.read_bytes().replace(b'"1.0"', b'"1.1"', 1))
    other, others = journal(tmp_path, {**BEFORE, "numerics": "fast"})
    found = other.find("t", "id1")
    assert found is not None
    assert others == 1
    assert other.changes(found)["infeng-core"] == "infeng-core was not recorded and is 1.0"
    other.close()


# --------------------------------------------------------------------------------------------------------- servers ---


def asked(served: Running, **headers: str) -> httpx.Response:
    return story(served, headers)


def refusal(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.mark.slow
def test_a_stream_is_refused_after_an_upgrade_and_resumes_after_a_downgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with running(journal=str(tmp_path)) as one:
        key = {"idempotency-key": "order"}
        found = frames(asked(one, **key).content)
    last = found[4][0]
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "__version__", "9.9")
        with running(journal=str(tmp_path)) as upgraded:
            for again in (rest(upgraded.url, last), asked(upgraded, **key)):
                status, code, message = refusal(again)
                assert (status, code) == (409, "engine_changed")
                assert f"infeng-core was {__version__} and is 9.9" in message
            assert asked(upgraded).status_code == 200
    for overrides, what in (
        ({"kv_cache.dtype": "f32"}, "cache format was native"),
        ({"kernels.numerics": "fast"}, "numerics was exact, revision 1 and is fast, revision 1"),
    ):
        with running(journal=str(tmp_path), overrides=overrides) as other:
            status, code, message = refusal(rest(other.url, last))
            assert (status, code) == (409, "engine_changed")
            assert what in message and message.count(" was ") == 1
    with running(journal=str(tmp_path)) as back:
        assert texts(frames(rest(back.url, last).content)) == texts(found[5:])


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [generating.HEAD_SECONDS, 0.0], ids=["head with text", "head before text"])
def test_an_adapter_that_was_not_in_memory_is_compared_before_its_text_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
):
    monkeypatch.setattr(generating, "HEAD_SECONDS", seconds)
    adapter = tmp_path / "bard"

    def loaded(settings: Settings) -> Model:
        config = load_config(overrides={"model.path": str(model_dir()), "threads.count": 1})
        return load(config, settings, [("bard", str(adapter), 1.0)])

    def put(name: str) -> None:
        shutil.rmtree(adapter, ignore_errors=True)
        shutil.copytree(adapter_dir(name), adapter, copy_function=shutil.copyfile)  # with times of their own

    put("shakespeare")
    with running(journal=str(tmp_path / "journal"), model=loaded) as one:
        found = frames(asked(one).content)
        [path] = (tmp_path / "journal").glob("*.journal")
        last = json.loads(path.read_bytes().splitlines()[-1][9:])
        assert last["adapters"] == [["bard", str(adapter), one.engine.adapters["bard"].id]]
    for name, is_same in (("shakespeare", True), ("python", False)):
        put(name)
        with running(journal=str(tmp_path / "journal"), model=loaded) as other:
            again = rest(other.url, found[3][0])
            if is_same:
                assert texts(frames(again.content)) == texts(found[4:])
                continue
            if seconds:
                status, code, message = refusal(again)
                assert (status, code) == (409, "model_changed")
            else:
                message = again.text
                assert '"model_changed"' in message and '"text"' not in message
            assert "the adapter bard has other contents" in message
