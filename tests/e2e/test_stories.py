"""A trained model tells the story that its author's own program tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e import harness
from e2e.conftest import Run

CHARACTERS = 460  # of the expected text; its last 4 need one token more than 199


@pytest.mark.parametrize("implementation", harness.IMPLEMENTATIONS)
def test_stories260k_tells_the_expected_story(implementation: str, stories: Path, infeng: Run) -> None:
    if reason := harness.missing(implementation):
        pytest.skip(reason)
    settings = []
    for key, value in harness.IMPLEMENTATIONS[implementation].items():
        settings += ["--set", f"{key}={value if isinstance(value, str) else ','.join(value)}"]
    options = ("-n", "199", "--temperature", "0", "--format", "f32", "--set", "kv_cache.dtype=f32", *settings)
    done = infeng("run", stories, "-p", "", *options)
    assert done.returncode == 0, done.stderr
    expected = (stories / "expected_greedy.txt").read_text()[:CHARACTERS]
    assert done.stdout[:CHARACTERS] == expected
    assert len(done.stdout.rstrip("\n")) == CHARACTERS
