"""The examples of the client's page run as they stand; the server is one that answers from a rule."""

import re
from pathlib import Path

import pytest
from fake_openai import FakeServer

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

ROOT = Path(__file__).parents[2]
PAGES = ("docs/client.md", "plugins/client/README.md")
EXAMPLES = [code for page in PAGES for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) >= 6
    with FakeServer() as server:
        for code in EXAMPLES:
            assert "http://localhost:8000" in code
            exec(code.replace("http://localhost:8000", server.url), {"__name__": "__main__"})
            said = capsys.readouterr().out
            assert said, code
            assert "failed" not in said
            assert "broken off" not in said
