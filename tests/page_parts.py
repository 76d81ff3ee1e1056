"""The server's page in a browser, and routes that answer what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import browser_parts
from infeng_serve.app import Route
from serve_parts import Running, until

CHAT = "/v1/chat/completions"
Pieces = Sequence[str | dict[str, str]]
"""Texts, or deltas as they are in a chunk."""


class Page:
    """The page in a browser, as somebody sees it who uses it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, served: Running) -> None:
        """Open it and wait for the models."""
        self.driver.get(f"{served.url}/")
        assert until(lambda: self.names() or self.one("#models-note").text)

    def one(self, selector: str) -> Any:
        """Return the first element of a selector."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        """Return the elements of a selector."""
        return list(self.driver.find_elements("css selector", selector))

    def texts(self, selector: str) -> list[str]:
        """Return what is seen of the elements of a selector, all of one moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText.trim())"
        return [text.replace("\xa0", " ") for text in self.driver.execute_script(script, selector)]

    def names(self) -> list[str]:
        """Return the columns that are shown."""
        return self.texts(".column h2")

    def turns(self, model: str, role: str) -> list[str]:
        """Return the texts of one role in one column, as they are in the document."""
        script = (
            "return [...document.querySelectorAll('.column')]"
            ".find(c => c.querySelector('h2').textContent == arguments[0])"
            ".querySelectorAll('.turn.' + arguments[1]).values().map(t => t.textContent).toArray()"
        )
        return list(self.driver.execute_script(script, model, role))

    def figures(self) -> list[str]:
        """Return the lines of figures of the answers."""
        return self.texts(".figures")

    def kept(self) -> list[Any]:
        """Return the conversations that the browser keeps, the newest first."""
        texts = self.driver.execute_script(
            "return Object.entries(localStorage).filter(([k]) => k.includes(':conversation:')).map(([, v]) => v)"
        )
        return sorted(map(json.loads, texts), key=lambda found: -found["changed"])

    def answers(self, model: str) -> list[str]:
        """Return a model's answers of the newest conversation, as they came."""
        found = [answer for round in self.kept()[0]["rounds"] for answer in round["answers"]]
        return [answer["versions"][answer["at"]]["text"] for answer in found if answer["model"] == model]

    def titles(self) -> list[str]:
        """Return the list of conversations."""
        return self.texts("#conversations button")

    def notices(self) -> str:
        """Return what the page tells."""
        return str(self.one("#notices").text)

    def click(self, label: str) -> None:
        """Click the last button of a name."""
        self.all(f"button[aria-label='{label}']")[-1].click()

    def say(self, text: str) -> None:
        """Send a message, and wait for the answers."""
        self.write("prompt", text)
        self.one("#send").click()
        assert self.ends()

    def write(self, name: str, text: str) -> None:
        """Fill a field."""
        field = self.one(f"[name={name}]")
        field.clear()
        if "\n" in text or len(text) > 1000:  # typed, a line break sends, and a long text takes minutes
            changed = "arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"
            script = f"arguments[0].value = arguments[1]; {changed}"
            self.driver.execute_script(script, field, text)
        else:
            field.send_keys(text)

    def ends(self) -> bool:
        """Wait until nothing is being answered."""
        return until(lambda: not self.one("#stop").is_enabled())

    def complaints(self) -> list[str]:
        """Return what the console has got since the last look."""
        return browser_parts.complaints(self.driver)


def saying(answer: Callable[[dict[str, Any]], Pieces], *, finish: str = "stop") -> dict[str, Route]:
    """Return the chat's route with answers of one's own: the pieces for a body."""

    async def answered(service: Any, call: Any) -> None:
        given = json.loads(await service.body(call))
        await call.begin()
        for piece in answer(given):
            delta = {"content": piece} if isinstance(piece, str) else piece
            await call.write(b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n")
        last = {"choices": [{"delta": {}, "finish_reason": finish}]}
        await call.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n", is_last=True)

    return {CHAT: Route({"POST": answered})}
