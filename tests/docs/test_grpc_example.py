"""The example of gRPC runs as it stands, against a server with the adapter that it names."""

import re
from pathlib import Path

import pytest

pytest.importorskip("infeng_serve", reason="the serve wheel is not installed")
pytest.importorskip("smg_grpc_proto", reason="infeng-serve[grpc] is not installed")

from serve_parts import running

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_prints_tokens_and_why_the_answer_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert "localhost:50051" in EXAMPLE
    with running(grpc_port=0) as served:
        exec(EXAMPLE.replace("localhost:50051", served.server.grpc_address), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "length"
    assert len(re.findall(r"\d+", "".join(lines[:-1]))) == 24
