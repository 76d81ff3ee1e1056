"""What was accepted is kept: streams go on where they broke, repeated calls get the same bytes, after a restart too."""

from __future__ import annotations

import errno
import os
import random
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir
from infeng_serve.auth import Keys
from infeng_serve.journal import Entry, Journal
from serve_parts import running, until
from stream_parts import DONE, STORY, frames, rest, story, texts

from infeng_core.api import UsageError


def entry(number: int, *, created: int = 1000, tenant: str = "t", body: bytes = b"{}") -> Entry:
    return Entry(f"id{number}", "/v1/completions", tenant, created, body, (number,), key=f"key{number}")


def journal(directory: Path | None, **given: Any) -> Journal:
    made = Journal(directory, clock=lambda: 1000.0, **given)
    made.read()
    return made


# ----------------------------------------------------------------------------------------------------- its files ---


def test_an_entry_is_found_by_its_tenant_and_after_a_restart(tmp_path: Path):
    first = journal(tmp_path)
    first.add(entry(1))
    first.add(entry(2, tenant="other"))
    first.close()
    again = journal(tmp_path)
    for one in (first, again):
        assert one.find("t", "id1") == one.repeated("t", "key1") == entry(1)
        assert one.find("t", "id2") is one.repeated("t", "key2") is one.find("t", "id3") is None
    again.close()


def test_a_truncated_or_damaged_line_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    first = journal(tmp_path)
    for number in range(4):
        first.add(entry(number))
    first.close()
    [path] = tmp_path.glob("*.journal")
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"id1"', b'"id7"')
    path.write_bytes(b"\n".join(lines[:-2]) + b"\n" + lines[3][:20])
    again = journal(tmp_path)
    assert [again.find("t", f"id{number}") is not None for number in (0, 1, 2, 3, 7)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    again.add(entry(9))  # into a file of its own, behind no torn line
    again.close()
    once_more = journal(tmp_path)
    assert once_more.find("t", "id9") == entry(9)
    once_more.close()


def test_entries_beyond_the_age_or_size_limit_are_dropped(tmp_path: Path):
    small = journal(tmp_path, keep=100.0, most_bytes=20_000)
    small.add(entry(0, created=800))
    for number in range(1, 40):
        small.add(entry(number, body=b"x" * 1000))
    assert small.find("t", "id0") is small.find("t", "id1") is None
    assert small.find("t", "id39") is not None
    assert sum(path.stat().st_size for path in tmp_path.glob("*.journal")) <= 20_000
    small.close()


def test_a_directory_is_used_by_one_server_at_a_time(tmp_path: Path):
    first = journal(tmp_path)
    with pytest.raises(UsageError, match="another server writes it"):
        journal(tmp_path)
    first.close()
    journal(tmp_path).close()


# -------------------------------------------------------------------------------------- what is not the journal's ---

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def strangers(path: Path) -> None:
    path.write_bytes(b"")
    os.chown(path, 12345, 12345)


def anybodys(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o666)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.with_name("0000000001 (copy).journal").write_bytes(b"x"),
        lambda path: path.with_name("7.journal").write_bytes(b"x"),
        lambda path: path.with_name("1\u0662.journal").write_bytes(b"x"),
        os.mkfifo,
        Path.mkdir,
        anybodys,
        pytest.param(strangers, marks=as_root),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("target"),
    ],
)
def test_foreign_files_are_neither_read_nor_removed(tmp_path: Path, make: Callable[[Path], None]):
    first = journal(tmp_path, most_bytes=20_000)
    first.add(entry(1))
    first.close()
    make(tmp_path / "0000000002.journal")
    (tmp_path / "target").write_bytes(b"a file of somebody's")
    strange = sorted(path for path in tmp_path.iterdir() if path.name not in ("lock", "0000000001.journal"))
    again = journal(tmp_path, most_bytes=20_000)
    assert again.find("t", "id1") == entry(1)
    for number in range(2, 60):
        again.add(entry(number, body=b"x" * 1000))
    assert again.find("t", "id59") is not None and not again.trouble
    again.close()
    assert all(os.path.lexists(path) for path in strange)
    assert not (tmp_path / "0000000001.journal").exists()  # which is ours, and made room


def test_lines_and_files_are_bounded(tmp_path: Path):
    first = journal(tmp_path)
    first.add(entry(1))
    first.close()
    [path] = tmp_path.glob("*.journal")
    with path.open("ab") as file:
        file.write(b"y" * 10_000_000 + b"\n")
    second = journal(tmp_path)
    second.add(entry(2))
    second.close()
    sparse(tmp_path / "0000000009.journal")
    again = Journal(tmp_path, clock=lambda: 1000.0, most_line=10_000)
    tracemalloc.start()
    assert again.read() == 2
    assert tracemalloc.get_traced_memory()[1] < 2_500_000
    tracemalloc.stop()
    assert again.find("t", "id1") and again.find("t", "id2")
    again.close()


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o777), pytest.param(strangers, marks=as_root)])
def test_a_folder_that_other_users_may_write_is_refused(tmp_path: Path, change: Callable[[Path], None]):
    folder = tmp_path / "journal"
    folder.mkdir()
    change(folder) if change is not strangers else os.chown(folder, 12345, 12345)
    with pytest.raises(UsageError, match="not trusted"):
        journal(folder)
    assert not (folder / "lock").exists()


def test_a_damaged_file_gives_only_entries_that_were_added(tmp_path: Path):
    first = journal(tmp_path)
    added = {f"id{number}": entry(number) for number in range(20)}
    for one in added.values():
        first.add(one)
    first.close()
    [path] = tmp_path.glob("*.journal")
    whole, rng, kept = path.read_bytes(), random.Random(5), 0
    for _ in range(300):
        at, end = sorted(rng.sample(range(len(whole)), 2))
        junk = rng.choice((b"\0" * 50, b"\n\n", b"0 {}", b"[" * 5000, b"\xff", b"1" * 5000 + b" {}\n"))
        flipped = bytes([whole[at] ^ 1 << rng.randrange(8)])
        changed = (
            whole[:at] + flipped + whole[at + 1 :], whole[:at] + whole[end:], whole[:end] + whole[at:],
            whole[:at] + junk + whole[at:], whole[:at],
        )  # fmt: skip
        path.write_bytes(rng.choice(changed))
        again = journal(tmp_path)
        found = {id: one for id in added if (one := again.find("t", id)) is not None}
        again.close()
        assert found.items() <= added.items()
        kept += len(found)
    assert kept > 300 * 8


@pytest.mark.slow
def test_calls_are_answered_while_the_disk_is_full_and_written_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with running(journal=str(tmp_path / "journal")) as served:

        def ask(**more: Any) -> httpx.Response:
            return story(served, **more)

        def ready() -> Any:
            return httpx.get(f"{served.url}/ready").json()

        assert frames(ask().content) and ready() == {"status": "ready"}
        write = os.write

        def full(handle: int, data: bytes) -> int:
            if b'"/v1/completions"' not in data:
                return write(handle, data)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", full)
        whole = frames(ask().content)
        assert ready() == {"status": "ready", "journal": "not written: No space left on device"}
        assert texts(frames(rest(served.url, whole[3][0]).content)) == texts(whole[4:])  # from memory
        monkeypatch.setattr(os, "write", write)
        later = frames(ask(prompt="Again").content)
        assert ready() == {"status": "ready"}
        for path in (tmp_path / "journal").glob("*.journal"):
            path.unlink()  # an operator clears the folder
        last = frames(ask(prompt="Once more").content)
    with running(journal=str(tmp_path / "journal")) as other:
        assert [rest(other.url, one[3][0]).status_code for one in (whole, later, last)] == [404, 404, 200]


# ------------------------------------------------------------------------------------------------------- streams ---


@pytest.mark.slow
def test_a_stream_resumes_after_any_frame_also_on_another_server(tmp_path: Path):
    with running(journal=str(tmp_path)) as one:
        whole = story(one).content
        found = frames(whole)
        assert len(found) > 6 and all(id for id, frame in found if frame != DONE)
        for index in (0, 1, 4, len(found) - 2):
            again = frames(rest(one.url, found[index][0]).content)
            assert texts(again) == texts(found[index + 1 :])
            assert again[-1][1] == DONE
    with running(journal=str(tmp_path)) as other:
        assert texts(frames(rest(other.url, found[5][0]).content)) == texts(found[6:])


def test_a_stream_resumes_only_for_its_tenant_and_with_the_same_weights(tmp_path: Path):
    keys = Keys(["a-key-of-one", "a-key-of-two"])
    with running(keys=keys, journal=str(tmp_path)) as served:
        mine, other = ({"authorization": f"Bearer a-key-of-{name}"} for name in ("one", "two"))
        whole = story(served, mine).content
        last = frames(whole)[3][0]
        assert rest(served.url, last, **mine).status_code == 200
        assert rest(served.url, last, **other).status_code == 404
        assert rest(served.url, last).status_code == 401
        assert rest(served.url, "nothing/1.1", **mine).status_code == 404
        assert rest(served.url, last + "9.9", **mine).status_code == 400
        served.engine.adapters.unload("bard")
        served.engine.adapters.load("bard", str(adapter_dir("python")))
        assert rest(served.url, last, **mine).status_code == 409


def test_two_calls_with_the_same_client_id_resume_separately(tmp_path: Path):
    head = {"x-request-id": "gw-77"}
    with running(journal=str(tmp_path)) as one:
        answers = [story(one, head, prompt=prompt) for prompt in ("The king", "Once upon a time there was a lion")]
        wholes = [frames(answer.content) for answer in answers]
        assert texts(wholes[0]) != texts(wholes[1])
        assert all(
            answer.headers["x-request-id"] == "gw-77" and b'"cmpl-gw-77"' in answer.content for answer in answers
        )
        for whole in wholes:
            assert texts(frames(rest(one.url, whole[4][0]).content)) == texts(whole[5:])
        assert rest(one.url, "gw-77/4.4").status_code == 404  # which of the two it was nobody can say
        mixed = wholes[0][4][0].rpartition("/")[0] + "/" + wholes[1][4][0]
        assert rest(one.url, mixed).status_code == 404
    with running(journal=str(tmp_path)) as other:
        for whole in wholes:
            again = rest(other.url, whole[4][0]).content
            assert texts(frames(again)) == texts(whole[5:])
            assert b'"cmpl-gw-77"' in again


def test_a_call_with_the_id_of_another_does_not_replace_it(tmp_path: Path):
    with running(journal=str(tmp_path)) as served:
        first = frames(story(served).content)
        taken = first[4][0].rpartition("/")[0]
        body = {**STORY, "prompt": "Another story"}
        httpx.post(f"{served.url}/v1/completions", json=body, headers={"x-request-id": taken}, timeout=60)
        assert texts(frames(rest(served.url, first[4][0]).content)) == texts(first[5:])


# --------------------------------------------------------------------------------------------- the same call again ---


def test_a_repeated_idempotency_key_gets_the_same_bytes():
    body = {"model": "bard", "prompt": "The king", "max_tokens": 12, "temperature": 1.0}
    with running() as served:

        def ask(given: dict[str, Any], key: str) -> httpx.Response:
            return httpx.post(f"{served.url}/v1/completions", json=given, headers={"idempotency-key": key}, timeout=60)

        first = ask(body, "order-1")
        assert ask(body, "order-1").content == first.content
        assert ask(body, "order-2").content != first.content
        refused = ask({**body, "max_tokens": 13}, "order-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert ask(body, "k" * 300).status_code == 400


def test_of_two_concurrent_calls_with_one_key_one_gets_409():
    body = {"prompt": "The king", "max_tokens": 8, "ignore_eos": True}
    with running() as served:
        answers: list[int] = []
        go, inner = threading.Event(), served.engine.executable.run

        def run(batch: Any) -> Any:
            assert go.wait(30)
            return inner(batch)

        served.engine.executable.run = run  # type: ignore[method-assign]

        def ask() -> None:
            with httpx.Client(timeout=60) as client:
                head = {"idempotency-key": "same"}
                answers.append(client.post(f"{served.url}/v1/completions", json=body, headers=head).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert until(lambda: len(answers) == 2)
        go.set()
        for thread in threads:
            thread.join()
        assert answers == [409, 409, 200]
        ask()
        assert answers[-1] == 200
