"""A server over the demo model with the routes of the wheel infeng-dialects."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infeng_demo import model_dir
from infeng_dialects.hooks import DIALECTS, infeng_serve_routes
from infeng_serve.app import Route
from serve_parts import Running, running


def dialects(**settings: Any) -> dict[str, Route]:
    """Return the routes that a server with these settings of the wheel has."""
    given: Mapping[str, Any] = {"use": list(DIALECTS), "rank": "auto", **settings}
    return infeng_serve_routes(given)


@contextlib.contextmanager
def speaking(*, rank: str = "auto", **given: Any) -> Iterator[Running]:
    """Run a server with all dialects; the rest as ``running`` takes it."""
    with running(routes=dialects(rank=rank), **given) as found:
        yield found


def relabelled(folder: Path, *texts: str, special: bool = False) -> Path:
    """Return a copy of the demo model in which each text is one token, in place of a token that nothing is made of."""
    shutil.copytree(model_dir(), folder)
    file = folder / "tokenizer.json"
    made = json.loads(file.read_text(encoding="utf-8"))
    vocab, merges = made["model"]["vocab"], made["model"]["merges"]
    parts = {part for merge in merges for part in merge}
    leaves = [token for token, _ in sorted(vocab.items(), key=lambda entry: -entry[1]) if token not in parts]
    for text, leaf in zip(texts, leaves, strict=False):
        id = vocab.pop(leaf)
        vocab[text] = id
        merges[:] = [merge for merge in merges if "".join(merge) not in (leaf, text)]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        made["added_tokens"].append({"id": id, "content": text, "special": special, **flags})
    file.write_text(json.dumps(made), encoding="utf-8")
    return folder
