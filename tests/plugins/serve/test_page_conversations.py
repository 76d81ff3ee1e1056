"""Conversations of the page: kept by the browser, changed, answered again, with files and settings."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from page_parts import CHAT, Page, saying
from serve_parts import ADAPTERS, Running, running, slowed, until

pytestmark = pytest.mark.slow


class Echo:
    """Answers of numbered texts; ``bodies`` are the requests."""

    def __init__(self, finish: str = "stop") -> None:
        """Answer from 1 on."""
        self.bodies: list[dict[str, Any]] = []
        self.routes = saying(self._answer, finish=finish)
        self._lock = threading.Lock()

    def _answer(self, given: dict[str, Any]) -> Sequence[str]:
        with self._lock:
            self.bodies.append(given)
            return [f"answer {len(self.bodies)}"]


def alone(page: Page, served: Running) -> None:
    """Open the page with the base model alone."""
    page.open(served)
    if len(page.names()) > 1:
        page.all("#model-list input")[1].click()
    assert len(page.names()) == 1


def said(body: dict[str, Any]) -> list[str]:
    """Return the messages of a request."""
    return [message["content"] for message in body["messages"]]


# -------------------------------------------------------------------------------------------------------- kept ---


def test_conversations_survive_a_reload_and_go_on(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        [model] = page.names()
        page.say("first")
        page.driver.refresh()
        assert until(lambda: page.turns(model, "assistant") if page.names() else False)
        assert page.names() == [model]
        assert (page.turns(model, "user"), page.turns(model, "assistant")) == (["first"], ["answer 1"])
        page.say("second")
        assert said(echo.bodies[-1]) == ["first", "answer 1", "second"]
        page.one("#new").click()
        assert page.turns(model, "user") == []
        page.say("third")
        assert said(echo.bodies[-1]) == ["third"]
        assert page.titles() == ["third", "first"]
        page.all("#conversations button")[1].click()
        assert until(lambda: page.turns(model, "user") == ["first", "second"])
        page.write("title", "Mine")
        page.one("[name=title]").send_keys("\ue007")
        assert until(lambda: page.titles() == ["third", "Mine"])
        page.one("#delete").click()
        page.driver.switch_to.alert.accept()
        assert until(lambda: page.titles() == ["third"])
        assert [found["rounds"][0]["text"] for found in page.kept()] == ["third"]
        assert page.complaints() == []


def test_nothing_is_kept_where_the_user_says_so(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        page.say("first")
        assert len(page.kept()) == 1
        page.one("[name=keep]").click()
        page.driver.switch_to.alert.accept()
        page.write("system", "secret")
        page.say("second")
        assert page.kept() == []
        everything = page.driver.execute_script("return JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert not any(word in everything for word in ("first", "second", "answer", "secret"))
        page.driver.refresh()
        assert until(page.names)
        assert not page.one("[name=keep]").is_selected()
        assert page.titles() == []


def test_each_key_has_a_list_of_its_own(page: Page):
    from infeng_serve.auth import Keys

    echo = Echo()
    with running(routes=echo.routes, keys=Keys(["sk-1", "sk-2"])) as served:
        page.open(served)
        for key in ("sk-1", "sk-2"):
            page.write("key", f"{key}\ue007")  # Enter
            assert until(lambda: page.names() and page.titles() == [])
            page.say(f"of {key}")
            assert page.titles() == [f"of {key}"]
            assert page.one("[name=mode]").is_selected()
            page.one("[name=mode]").send_keys("\ue007")
            assert page.titles() == [f"of {key}"]
            assert page.turns(page.names()[0], "user") == [f"of {key}"]
        page.write("key", "sk-1\t")
        assert until(lambda: page.titles() == ["of sk-1"])
        assert "sk-" not in page.driver.execute_script("return Object.keys(localStorage).join()")


def test_two_tabs_keep_each_others_conversations(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        first = page.driver.current_window_handle
        page.say("of one")
        page.driver.switch_to.new_window("tab")
        try:
            alone(page, served)
            [model] = page.names()
            assert until(lambda: page.titles() == ["of one"])
            page.say("of two")
            page.all("#conversations button")[1].click()
            assert until(lambda: page.turns(model, "user") == ["of one"])
            page.say("more")  # in the conversation that the first tab shows
        finally:
            page.driver.close()
            page.driver.switch_to.window(first)
        assert until(lambda: page.turns(model, "user") == ["of one", "more"])
        assert sorted(page.titles()) == ["of one", "of two"]
        page.say("end")
        assert said(echo.bodies[-1]) == ["of one", "answer 1", "more", "answer 3", "end"]


FULL = """
const [count, size] = arguments;
for (let i = 0; i < count; i++) {
  const rounds = [{text: `old ${i} ` + "x".repeat(size), files: [], answers: []}];
  const found = {id: `id${i}`, title: `old ${i}`, mode: "chat", changed: i + 1, rounds};
  localStorage.setItem(`infeng:open:conversation:id${i}`, JSON.stringify(found));
}
"""


@pytest.mark.parametrize(("count", "size", "left"), [(100, 10, 100), (4, 990_000, 4)])
def test_the_oldest_conversation_goes_where_there_is_no_room_with_a_notice(
    page: Page, count: int, size: int, left: int
):
    with running(routes=Echo().routes) as served:
        page.open(served)
        page.driver.execute_script(FULL, count, size)
        page.driver.refresh()
        assert until(lambda: len(page.titles()) == count)
        page.say("y" * 60_000 if size > 10 else "new")
        titles = [found["title"] for found in page.kept()]
        assert len(titles) == left and titles[0] == "" and "old 0" not in titles
        assert "“old 0” was removed" in page.notices()
        assert page.complaints() == []


def test_storage_that_others_filled_is_told_and_the_chat_goes_on(page: Page):
    with running(routes=Echo().routes) as served:
        alone(page, served)
        [model] = page.names()
        page.driver.execute_script(
            "for (const size of [4e6, 1e6, 1e5, 1e4, 1e3, 100, 10, 1]) try { for (let i = 0; i < 9; i++)"
            " localStorage.setItem(`other ${size} ${i}`, 'x'.repeat(size)) } catch {}"
        )
        page.say("hello")
        assert page.turns(model, "assistant") == ["answer 1"]
        assert "no room for this conversation" in page.notices()
        assert page.kept() == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '{"id": "x"}', '{"id": "x", "title": "t", "mode": "chat", "changed": 1, "rounds": [{}]}'],
)
def test_items_that_are_no_conversations_are_left_alone(page: Page, text: str):
    with running(routes=Echo().routes) as served:
        page.open(served)
        page.driver.execute_script("localStorage.setItem('infeng:open:conversation:x', arguments[0])", text)
        page.driver.refresh()
        assert until(page.names)
        assert page.titles() == []
        page.say("hello")
        assert page.titles() == ["hello"]
        assert page.complaints() == []


def test_a_conversation_is_exported(page: Page, tmp_path: Path):
    with running(routes=Echo().routes) as served:
        alone(page, served)
        [model] = page.names()
        page.say("hello")
        page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
        page.one("#export-markdown").click()
        page.one("#export-json").click()
        assert until(lambda: {path.name for path in tmp_path.iterdir()} == {"hello.md", "hello.json"})
        assert until((tmp_path / "hello.md").read_text) and until((tmp_path / "hello.json").read_text)
        wanted = f"# hello\n\n## User\n\nhello\n\n## {model}\n\nanswer 1\n"
        assert (tmp_path / "hello.md").read_text() == wanted
        assert json.loads((tmp_path / "hello.json").read_text())["rounds"][0]["text"] == "hello"


# ----------------------------------------------------------------------------------------------- changed, again ---


def test_a_message_is_edited_and_what_followed_is_replaced(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        [model] = page.names()
        page.say("one")
        page.say("two")
        page.all("button[aria-label='Edit this message']")[0].click()
        field = page.one(".edit textarea")
        assert field.get_attribute("value") == "one"
        field.send_keys("\ue00c")  # Escape
        assert page.turns(model, "user") == ["one", "two"]
        page.all("button[aria-label='Edit this message']")[0].click()
        page.one(".edit textarea").send_keys(" more\ue007")
        assert page.ends()
        assert page.turns(model, "user") == ["one more"]
        assert page.turns(model, "assistant") == ["answer 3"]
        assert said(echo.bodies[-1]) == ["one more"]


def test_an_answer_has_versions_of_which_the_shown_one_counts(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        [model] = page.names()
        page.say("one")
        page.click("Answer again")
        assert page.ends()
        assert page.turns(model, "assistant") == ["answer 2"]
        assert said(echo.bodies[1]) == ["one"]
        page.click("Previous version")
        assert page.turns(model, "assistant") == ["answer 1"]
        page.say("two")
        assert said(echo.bodies[2]) == ["one", "answer 1", "two"]


def test_an_answer_that_was_cut_is_continued(page: Page, served: Running):
    alone(page, served)
    [model] = page.names()
    page.write("temperature", "0")
    page.write("max_tokens", "8")
    page.say("Who goes there?")
    assert page.figures()[0].endswith("length")
    before = page.answers(model)[0]
    page.click("Continue this answer")
    assert page.ends()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Who goes there?"}, {"role": "assistant", "content": before}],
        "temperature": 0,
        "max_tokens": 8,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    more = served.ask(CHAT, body).json["choices"][0]["message"]["content"]
    assert page.answers(model) == [before + more]
    assert page.complaints() == []


def test_a_reload_keeps_what_there_was_of_an_answer(page: Page, served: Running):
    alone(page, served)
    [model] = page.names()
    with slowed(served.engine, 0.05):
        page.write("prompt", "Tell me a long story.")
        page.one("#send").click()
        assert until(lambda: any(text.strip() for text in page.turns(model, "assistant")))
        page.driver.refresh()
        assert until(page.names)
    assert page.answers(model)[0].strip()
    assert until(lambda: page.turns(model, "user") == ["Tell me a long story."])


def test_thoughts_are_shown_apart_and_not_sent_again(page: Page):
    bodies = []

    def answer(given: dict[str, Any]) -> list[str | dict[str, str]]:
        bodies.append(given)
        return [{"reasoning_content": "Hm, <b>"}, {"reasoning_content": "well."}, "Yes"]

    with running(routes=saying(answer)) as served:
        alone(page, served)
        [model] = page.names()
        page.say("one")
        assert page.turns(model, "thought") == ["Hm, <b>well."]
        assert page.turns(model, "assistant") == ["Yes"]
        page.say("two")
        assert said(bodies[-1]) == ["one", "Yes", "two"]
        page.driver.refresh()
        assert until(lambda: page.turns(model, "thought") == ["Hm, <b>well."] * 2 if page.names() else False)


@pytest.mark.parametrize("name", ["__proto__", "constructor", "a/b c?&#"])
def test_models_of_any_name_answer_and_are_kept(page: Page, name: str):
    echo = Echo()
    with running(routes=echo.routes, names=[name]) as served:
        alone(page, served)
        page.say("one")
        page.driver.refresh()
        assert until(lambda: page.turns(name, "assistant") == ["answer 1"] if page.names() else False)
        page.say("two")
        assert echo.bodies[-1]["model"] == name
        assert said(echo.bodies[-1]) == ["one", "answer 1", "two"]
        assert page.complaints() == []


def test_another_conversation_stops_what_is_answered_and_keeps_it(page: Page, served: Running):
    alone(page, served)
    [model] = page.names()
    with slowed(served.engine, 0.05):
        page.write("prompt", "Tell me a long story.")
        page.one("#send").click()
        assert until(lambda: any(text.strip() for text in page.turns(model, "assistant")))
        page.one("#new").click()
        assert page.ends()
        assert until(lambda: not served.server.service.limits.calls)
    assert page.turns(model, "user") == []
    assert page.kept()[0]["rounds"][0]["answers"][0]["versions"][0]["finish"] == "stopped"
    assert page.complaints() == []


# -------------------------------------------------------------------------------------------------------- files ---

DROP = """
const moved = new DataTransfer();
moved.items.add(new File(["dropped text"], "a.txt"));
document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
"""


def test_a_file_is_dropped_on_the_page_and_sent_alone(page: Page):
    echo = Echo()
    with running(routes=echo.routes) as served:
        alone(page, served)
        page.driver.execute_script(DROP)
        assert until(lambda: page.texts("#files .chip") == ["a.txt\n×"])
        page.one("#send").click()
        assert page.ends()
        assert said(echo.bodies[0]) == ["a.txt:\n```\ndropped text\n```"]


def test_text_files_go_with_a_message_and_others_are_refused_by_name(page: Page, tmp_path: Path):
    echo = Echo()
    (tmp_path / "notes.md").write_text("```\ncode\n```\n")
    (tmp_path / "drop.txt").write_text("gone")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "zeros.txt").write_bytes(b"a\0b")
    (tmp_path / "large.txt").write_text("x" * (256 * 1024 + 1))
    with running(routes=echo.routes) as served:
        alone(page, served)
        page.one("[name=file]").send_keys("\n".join(str(path) for path in sorted(tmp_path.iterdir())))
        assert until(lambda: len(page.all("#files .chip")) == 2)
        notices = page.notices()
        assert "photo.png is no text" in notices and "zeros.txt is no text" in notices
        assert "large.txt has 262145 bytes" in notices
        page.click("Remove drop.txt")
        page.say("What is this?")
        assert page.all("#files .chip") == []
        assert said(echo.bodies[0]) == ["notes.md:\n````\n```\ncode\n```\n````\n\nWhat is this?"]
        assert page.one(".round .chip").text == "notes.md"


# ----------------------------------------------------------------------------------------------------- settings ---

NUMBERS = {
    "temperature": 0.5, "top_p": 0.9, "max_tokens": 12, "seed": 3, "top_k": 40, "min_p": 0.05, "typical_p": 0.95,
    "top_n_sigma": 2, "xtc_probability": 0.1, "xtc_threshold": 0.2, "dry_multiplier": 0.8, "dry_base": 1.5,
    "dry_allowed_length": 3, "dry_penalty_last_n": 64, "presence_penalty": 0.25, "frequency_penalty": 0.75,
    "repetition_penalty": 1.1, "min_tokens": 1,
}  # fmt: skip


def test_all_parameters_are_sent_kept_and_reset(page: Page, served: Running):
    echo = Echo()
    schema = '{"type": "object"}'
    with running(routes=echo.routes) as spy:
        alone(page, spy)
        page.driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        for name, value in NUMBERS.items():
            page.write(name, str(value))
        for name, text in {
            "stops": "END\nSTOP",
            "schema": schema,
            "reasoning_effort": "low",
            "system": "Be terse.",
        }.items():
            page.write(name, text)
        page.one("[name=enable_thinking] [value=false]").click()
        page.one("h1").click()
        page.driver.refresh()
        assert until(page.names)
        alone(page, spy)
        page.say("hello")
        body = echo.bodies[0]
        assert {name: body[name] for name in NUMBERS} == NUMBERS
        assert body["structured_outputs"] == {"json": schema} and body["stop"] == ["END", "STOP"]
        assert (body["reasoning_effort"], body["enable_thinking"]) == ("low", False)
        assert said(body) == ["Be terse.", "hello"]
        body.pop("stream"), body.pop("stream_options")
        assert served.ask(CHAT, body).status == 200  # the server takes every one of them
        page.one("#reset").click()
        page.say("again")
        assert set(echo.bodies[1]) == {"model", "stream", "stream_options", "messages"}


def test_the_models_own_defaults_are_the_placeholders(page: Page, tmp_path: Path):
    from infeng_demo import model_dir

    shutil.copytree(model_dir(), tmp_path / "own")
    given = {"do_sample": True, "temperature": 0.7, "top_k": 20}
    (tmp_path / "own" / "generation_config.json").write_text(json.dumps(given))
    with running(overrides={"model.path": str(tmp_path / "own")}) as served:
        page.open(served)
        shown = {
            name: page.one(f"[name={name}]").get_attribute("placeholder") for name in ("temperature", "top_k", "top_p")
        }
        assert shown == {"temperature": "0.7", "top_k": "20", "top_p": "1"}


# ------------------------------------------------------------------------------------------------------- models ---


def test_adapters_are_loaded_reloaded_and_unloaded(page: Page, tmp_path: Path):
    bard = ADAPTERS[0][1]
    with running(lora_roots=(str(Path(bard).parent),)) as served:
        page.open(served)
        page.one("#models summary").click()
        page.write("lora_name", "fresh")
        page.write("lora_path", bard)
        page.one("#load").click()
        assert until(lambda: "fresh" in page.names()), page.notices()
        page.one("#load").click()
        assert until(lambda: "already been loaded" in page.notices())
        page.one("#reload").click()
        assert until(lambda: page.notices().count("added successfully") == 2)
        page.one("#unload").click()
        assert until(lambda: "fresh" not in page.names())
        page.write("lora_path", str(tmp_path))
        page.one("#load").click()
        assert until(lambda: "HTTP 40" in page.notices())


def test_models_come_by_pages_and_are_filtered(page: Page):
    names = [f"m{number:04}" for number in range(2_100)]
    with running(names=names, routes=Echo().routes) as served:
        page.open(served)
        assert len(page.all("#model-list input")) == 50
        page.one("#more-models").click()
        assert until(lambda: "850 more match" in page.one("#models-note").text)
        page.write("filter", "m2099")
        assert until(lambda: page.one("#model-list").text == "m2099 base")
        page.one("#model-list input").click()
        assert page.names()[-1] == "m2099"
        page.write("filter", "nothing")
        assert until(lambda: "No model" in page.one("#models-note").text)
