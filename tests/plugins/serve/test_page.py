"""The page at /: what is served without a key, and what a browser makes of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import threading
from importlib.metadata import files as files_of
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from page_parts import Page
from serve_parts import Running, demo_model, running, slowed, until

MODULES = ["page", "adapters", "column", "conversations", "dom", "files", "markdown", "server", "settings"]
FILES = {"/": "index.html", "/page.css": "page.css", **{f"/{name}.js": f"{name}.js" for name in MODULES}}
KINDS = {"/": "html", "/page.css": "css", **{f"/{name}.js": "javascript" for name in MODULES}}
PROMPT = "Write a function that adds two numbers."
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


# ------------------------------------------------------------------------------------------------------- by HTTP ---


@pytest.mark.parametrize("path", FILES)
def test_the_pages_files_are_served_under_a_strict_content_security_policy(served: Running, path: str):
    reply = served.ask(path)
    assert reply.status == 200
    assert reply.data == (files("infeng_serve") / "page" / FILES[path]).read_bytes()
    assert reply.headers["content-type"] == f"text/{KINDS[path]}; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data:"
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", FILES)
def test_browsers_cache_the_pages_files_and_revalidate_them(served: Running, path: str):
    whole = served.ask(path)
    assert whole.headers["cache-control"] == "no-cache"
    head = served.ask(path, method="HEAD")
    assert (head.status, head.data) == (200, b"")
    assert int(head.headers["content-length"]) == len(whole.data)
    tag = whole.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = served.ask(path, if_none_match=known)
        assert (again.status, again.data, again.headers["etag"]) == (304, b"", tag)
    assert served.ask(path, if_none_match='"other"').status == 200
    assert served.ask(path, {}).status == 405


def test_no_file_names_another_host_and_nothing_is_written_as_html():
    texts = {name: (files("infeng_serve") / "page" / name).read_text(encoding="utf-8") for name in FILES.values()}
    for name, text in texts.items():
        assert not re.search(r"(https?:|wss?:)?//[\w-]+\.|@import|url\(", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name
        assert ("localStorage" in text) == (name == "conversations.js"), name
    assert {path.name for path in (files("infeng_serve") / "page").iterdir()} == set(FILES.values())
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?! src=)", texts["index.html"])


def test_the_pages_files_are_in_the_wheel():
    listed = {str(path) for path in files_of("infeng-serve") or ()}
    if "infeng_serve/app.py" not in listed:
        pytest.skip("infeng-serve is not installed from a wheel")
    assert {f"infeng_serve/page/{name}" for name in FILES.values()} <= listed


def test_the_page_needs_no_key_and_other_paths_do():
    from infeng_serve.auth import Keys

    with running(keys=Keys(["k"])) as served:
        assert served.ask("/").status == served.ask("/page.js").status == 200
        assert served.ask("/v1/models").status == served.ask("/nothing").status == 401
        assert served.ask("/nothing", authorization="Bearer k").status == 404


def test_the_page_is_served_while_the_model_loads_and_can_be_switched_off():
    go_on = threading.Event()

    def late(settings: Any) -> Any:
        go_on.wait(30)
        return demo_model(settings)

    with running(model=late, waits=False) as served:
        assert served.ask("/").status == 200
        assert served.ask("/v1/models").status == 503
        go_on.set()
    with running(page=False) as served:
        assert [served.ask(path).status for path in FILES] == [404] * len(FILES)


def test_the_option_no_page_switches_the_page_off():
    from infeng_serve.command import Serve

    parser = argparse.ArgumentParser()
    Serve({}).configure(parser)
    assert parser.parse_args(["--no-page"]).page is False
    assert parser.parse_args([]).page is None  # so that the manifest's setting holds


# ---------------------------------------------------------------------------------------------------- in Chromium ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_columns_show_the_apis_answers_and_conversations_continue(page: Page, served: Running, mode: str):
    base = served.ask("/v1/models").json["data"][0]["id"]
    page.open(served)
    assert page.names() == [base, "bard"]
    page.one(f"[value={mode}]").click()
    for name, value in {"temperature": "0.8", "top_p": "0.9", "max_tokens": "40", "seed": "7"}.items():
        page.write(name, value)
    sampling = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 40, "seed": 7}
    system = "You are terse." if mode == "chat" else ""
    if system:
        page.write("system", system)
    turns: dict[str, list[str]] = {base: [], "bard": []}
    for prompt in (PROMPT, "And one that\nsubtracts?"):
        page.say(prompt)
        for model, said in turns.items():
            said.append(prompt)
            if mode == "chat":
                roles = [{"role": "user" if n % 2 == 0 else "assistant", "content": one} for n, one in enumerate(said)]
                body = {"messages": [{"role": "system", "content": system}, *roles]}
                choice = served.ask("/v1/chat/completions", {**body, **sampling, "model": model}).json["choices"][0]
                said.append(choice["message"]["content"])
            else:
                body = {"prompt": "".join(said)}
                said.append(
                    served.ask("/v1/completions", {**body, **sampling, "model": model}).json["choices"][0]["text"]
                )
            assert page.turns(model, "user") == said[::2]
            assert page.answers(model) == said[1::2]
            if mode == "completion":
                assert page.turns(model, "assistant") == said[1::2]
            assert said[-1].strip()
    assert turns[base] != turns["bard"]
    for line in page.figures():
        assert re.fullmatch(r"first token \d+ ms · [\d.]+ tokens/s · \d+ tokens · prompt of \d+ · (length|stop)", line)
    page.one("#clear").click()
    assert page.turns("bard", "user") == [] and page.figures() == []
    assert page.complaints() == []
    hosts = page.driver.execute_script(
        "return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)"
    )
    assert set(hosts) <= {served.url, "null"}


@pytest.mark.slow
def test_stop_cancels_the_answers_and_keeps_their_texts_so_far(page: Page, served: Running):
    page.open(served)
    page.write("max_tokens", "400")
    page.write("temperature", "0")
    page.one("[value=completion]").click()
    with slowed(served.engine, 0.05):
        page.write("prompt", "Once upon a time")
        page.one("#send").click()
        assert until(lambda: all("tokens/s" in line for line in page.figures()))
        page.one("#stop").click()
        assert page.ends()
        assert until(lambda: not served.server.service.limits.calls)
    assert all(line.endswith("stopped") for line in page.figures())
    before = page.turns("bard", "assistant")[0]
    page.write("max_tokens", "3")
    page.one("#send").click()  # no prompt: the text goes on
    assert page.ends()
    body = {"model": "bard", "prompt": f"Once upon a time{before}", "max_tokens": 3, "temperature": 0}
    wanted = served.ask("/v1/completions", body).json["choices"][0]["text"]
    assert page.turns("bard", "assistant") == [before, wanted]
    assert page.complaints() == []


@pytest.mark.slow
def test_markup_in_answers_names_and_errors_is_escaped(page: Page):
    from infeng_serve.app import Route
    from infeng_serve.protocol.errors import ApiError

    async def answers(service: Any, call: Any) -> None:
        model = json.loads(await service.body(call))["model"]
        if model == "bard":
            raise ApiError(429, HOSTILE, code="busy")
        await call.begin()
        for text in (HOSTILE[:9], HOSTILE[9:]):
            await call.write(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\r\n\r\n")
        await call.write(b"data: " + ApiError(500, f"broke {HOSTILE}").body() + b"\n\n", is_last=True)

    with running(routes={"/v1/chat/completions": Route({"POST": answers})}, names=(HOSTILE,)) as served:
        page.open(served)
        page.write("prompt", HOSTILE)
        page.one("#send").click()
        assert page.ends()
        assert page.names() == [HOSTILE, "bard"]
        assert page.turns(HOSTILE, "user") == page.turns(HOSTILE, "assistant") == [HOSTILE]
        assert page.turns(HOSTILE, "error") == [f"broke {HOSTILE} (invalid_request_error)"]
        assert page.turns("bard", "error") == [f"{HOSTILE} (HTTP 429, busy)"]
        assert page.driver.find_elements("css selector", "img, body script") == []
        assert page.driver.title == "INF-ENG: chat with models"


@pytest.mark.slow
def test_wrong_values_show_the_servers_error(page: Page, served: Running):
    page.open(served)
    page.write("temperature", "hot")
    page.write("prompt", PROMPT)
    page.one("#send").click()
    assert page.ends()
    wanted = served.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"})
    assert page.turns("bard", "error") == [
        f"{wanted.json['error']['message']} (HTTP 400, {wanted.json['error']['code']})"
    ]


@pytest.mark.slow
def test_the_page_works_by_keyboard_and_shows_the_focus(page: Page, served: Running):
    from selenium.webdriver import ActionChains, Keys

    def press(*keys: str) -> Any:
        chain = ActionChains(page.driver)
        for key in keys:
            chain.send_keys(key)
        chain.perform()
        return page.driver.switch_to.active_element

    def name_of(found: Any) -> str:
        if found.get_attribute("type") == "checkbox":
            return str(found.get_attribute("name") or found.get_attribute("value"))
        return str(found.get_attribute("name") or found.get_attribute("id") or found.text or found.accessible_name)

    page.open(served)
    assert name_of(page.driver.switch_to.active_element) == "prompt"
    page.driver.execute_script("document.activeElement.blur(); document.querySelector('h1').tabIndex = -1;"
                               "document.querySelector('h1').focus()")  # fmt: skip
    order = []
    for _ in range(40):
        found = press(Keys.TAB)
        order.append(name_of(found))
        assert found.accessible_name, order
        assert found.value_of_css_property("outline-style") == "solid", order
        if order[-1] == "clear":
            break
    models = [card["id"] for card in served.ask("/v1/models").json["data"]]
    logs = [f"Answers of {model}" for model in models[:2]]
    sampling = ["mode", "temperature", "top_p", "max_tokens", "seed", "More parameters", "system", "reset", "key"]
    first = ["new", "keep", "filter", *models, "Load an adapter"]
    assert order == [*first, *sampling, *logs, "prompt", "send", "clear"]

    page.one("#model-list input").send_keys(Keys.SPACE)  # the base goes, the last adapter comes
    page.driver.find_elements("css selector", "#model-list input")[2].send_keys(Keys.SPACE)
    assert page.names() == ["bard", "coder"]
    page.one("#prompt").send_keys(PROMPT, Keys.SHIFT + Keys.ENTER)
    assert page.one("#prompt").get_attribute("value") == f"{PROMPT}\n"
    with slowed(served.engine, 0.05):
        page.one("#prompt").send_keys(Keys.ENTER)
        assert until(lambda: all(page.turns(model, "assistant") for model in ("bard", "coder")))
        press(Keys.ESCAPE)
        assert page.ends()
    assert name_of(page.driver.switch_to.active_element) == "prompt"
    assert page.complaints() == []


@pytest.mark.slow
def test_the_key_is_sent_with_calls_and_stays_in_its_tab(page: Page):
    from infeng_serve.auth import Keys as ServerKeys
    from selenium.webdriver import Keys

    with running(keys=ServerKeys(["sk-1"])) as served:
        page.open(served)
        assert until(lambda: "An API key is missing" in page.one("#models-note").text)
        key, wanted = page.one("[name=key]"), page.one("#key-wanted")
        assert page.driver.switch_to.active_element == key
        assert "enter it here" in wanted.text
        key.send_keys("sk-2", Keys.TAB)
        assert until(lambda: "does not know this key" in wanted.text)
        assert key.get_attribute("aria-invalid") == "true"
        key.clear()
        key.send_keys("sk-1", Keys.TAB)
        assert until(lambda: "bard" in page.names())
        assert key.get_attribute("aria-invalid") == "false"
        assert not wanted.is_displayed()
        page.driver.refresh()
        assert until(lambda: "bard" in page.names())
        kept = page.driver.execute_script(
            "return [sessionStorage['infeng-api-key'], JSON.stringify(localStorage).includes('sk-1'), document.cookie]"
        )
        assert kept == ["sk-1", False, ""]


PLACES = ["h1", "legend", ".note", ".turn.user", ".turn.error", ".column header span", "#send", "#clear", "#prompt"]
CONTRAST = """
const light = (c) => c.map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  const c = rgb(getComputedStyle(e).backgroundColor);
  return c[3] === 0 ? ground(e.parentElement) : c.slice(0, 3);
};
return arguments[0].map((selector) => {
  const e = document.querySelector(selector);
  const [a, b] = [light(rgb(getComputedStyle(e).color).slice(0, 3)), light(ground(e))];
  return [selector, (Math.max(a, b) + .05) / (Math.min(a, b) + .05), b];
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_in_light_and_dark_and_on_a_phone(page: Page, served: Running, scheme: str):
    emulate = page.driver.execute_cdp_cmd
    emulate("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    with contextlib.ExitStack() as after:
        after.callback(emulate, "Emulation.clearDeviceMetricsOverride", {})
        page.open(served)
        page.write("temperature", "hot")
        page.write("prompt", PROMPT)
        page.one("#send").click()
        assert page.ends()
        for place, contrast, ground in page.driver.execute_script(CONTRAST, PLACES):
            assert contrast >= 4.5, place
            assert place == "#send" or (ground > 0.5) == (scheme == "light"), place
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        emulate("Emulation.setDeviceMetricsOverride", phone)
        page.open(served)
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        assert page.one("#options").get_attribute("open") is None
        assert page.one("#prompt").rect["y"] + page.one("#prompt").rect["height"] < 844
        assert page.one(".column").rect["width"] > 300


PLACED = """
const box = (selector) => document.querySelector(selector).getBoundingClientRect();
return {column: box(".column"), send: box("#send"), prompt: box("#prompt"), options: box("aside"),
        wide: document.documentElement.scrollWidth, high: document.documentElement.scrollHeight};
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(320, 568), (360, 640), (480, 800), (768, 600), (800, 700), (1280, 800)])
def test_answers_and_the_prompt_stay_visible_with_any_panel_open(page: Page, served: Running, width: int, height: int):
    emulate = page.driver.execute_cdp_cmd
    with contextlib.ExitStack() as after:
        after.callback(emulate, "Emulation.clearDeviceMetricsOverride", {})
        screen = {"deviceScaleFactor": 1, "mobile": False}
        emulate("Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 800, **screen})
        page.open(served)  # in a wide window, which becomes narrow then
        emulate("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, **screen})
        is_narrow = width <= 768
        assert until(lambda: (page.one("#options").get_attribute("open") is None) == is_narrow)
        page.driver.execute_script("document.getElementById('options').open = true")
        placed = page.driver.execute_script(PLACED)
        assert (placed["wide"], placed["high"]) == (width, height)
        assert placed["column"]["height"] >= 120 and placed["column"]["bottom"] <= placed["prompt"]["top"]
        assert placed["send"]["bottom"] <= height
        page.write("prompt", PROMPT)
        page.one("#send").click()
        assert (page.one("#options").get_attribute("open") is None) == is_narrow
        assert page.ends()
        assert page.driver.execute_script(PLACED)["column"]["height"] >= 200


@pytest.mark.slow
def test_on_a_phone_a_missing_key_opens_its_field(page: Page):
    from infeng_serve.auth import Keys as ServerKeys

    with running(keys=ServerKeys(["sk-1"])) as served, contextlib.ExitStack() as after:
        emulate = page.driver.execute_cdp_cmd
        after.callback(emulate, "Emulation.clearDeviceMetricsOverride", {})
        phone = {"width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": True}
        emulate("Emulation.setDeviceMetricsOverride", phone)
        page.open(served)
        key = page.one("[name=key]")
        assert until(lambda: page.driver.switch_to.active_element == key)
        box = page.driver.execute_script("return arguments[0].getBoundingClientRect()", key)
        assert box["top"] >= 0
        assert box["bottom"] <= 320


def test_the_picture_of_the_manual_is_small():
    picture = Path(__file__).parents[3] / "docs" / "pictures" / "serve-page.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 150_000
