"""mistral.rs through its Python package: weights are quantized when they are loaded.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's. The
package takes text, so a prompt is text of as many tokens as asked. Prompts are computed one after the other, since
version 0.9.5 fails at several prompts at a time with quantized weights on CPUs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "mistralrs"
ABOUT = "mistral.rs, a wheel for any x86-64 processor"
REQUIREMENTS = ("mistralrs==0.9.5", "numpy>=1.26")
PIP_OPTIONS = ("--only-binary", "mistralrs")
IMPORTS = ("mistralrs",)
FORMATS = {
    **dict.fromkeys(("int4-g64", "int4-g32", "int4-p32"), "q4_0"),
    **dict.fromkeys(("int8-row", "int8-g32"), "q8_0"),
    **dict.fromkeys(("bf16", "f16", "f32"), "none"),
}
"""Our weight format -> mistral.rs's type of weights, which it makes of the checkpoint; none: as the checkpoint is."""

OPTIONS: dict[str, str] = {}
KIND, TEMPLATE = "infeng-kind.json", "plain.jinja"  # of an export
TEXT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SPARE = 8  # tokens for each row that begun rows may decode while the others' prompts are computed


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return the command that links the checkpoint and notes the type of weights and a template of plain text."""
    code = (
        "import pathlib, sys; source, folder = map(pathlib.Path, sys.argv[1:3]); "
        "[(folder / file.name).symlink_to(file) for file in source.resolve().iterdir()]; "
        f"(folder / {KIND!r}).write_text(sys.argv[3]); (folder / {TEMPLATE!r}).write_text(sys.argv[4])"
    )
    return [[str(tools / "python"), "-P", "-c", code, str(source), str(folder), json.dumps(kind), TEXT]]


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load the weights and quantize them."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    from importlib.metadata import version

    import mistralrs as native

    shape = json.loads(Path(model, "config.json").read_text())
    kind = json.loads(Path(model, KIND).read_text())
    runner = native.Runner(
        which=native.Which.Plain(model_id=model, tokenizer_json=str(Path(model, "tokenizer.json"))),
        in_situ_quant=None if kind == "none" else kind,
        jinja_explicit=str(Path(model, TEMPLATE)),
        max_seqs=256,
        prefix_cache_n=0,  # every measurement computes its prompts
        no_paged_attn=True,
    )
    heads, layers = shape["num_key_value_heads"], shape["num_hidden_layers"]
    width = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]

    class MistralRs:
        vocab = shape["vocab_size"]

        def __init__(self) -> None:
            self.texts: dict[tuple[int, int], str] = {}
            self.waiting: dict[int, int] = {}  # the lengths of prompts that have not begun, by slot
            self.streams: dict[int, Any] = {}  # by slot

        def introduction(self) -> dict[str, Any]:
            return {
                "version": version("mistralrs"),
                "kernels": [f"weights {kind}"],
                "bytes_per_token": None,
                "details": {"kv_bytes_per_position": 2 * layers * heads * width * 2},
            }

        def open(self, kind: str, rows: int, positions: int) -> None:
            self.kind, self.rows, self.positions = kind, rows, positions

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.waiting[slot] = len(prompt)

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            for slot in slots:
                if slot in self.waiting:
                    self.streams[slot] = self._begin(slot, self.waiting.pop(slot))
                if next(self.streams[slot], None) is None:
                    raise RuntimeError(f"row {slot} ended before the last step")
            return [(slot, 0) for slot in slots]

        def stop(self) -> None:
            self.streams, self.waiting = {}, {}

        def _begin(self, slot: int, length: int) -> Any:
            new = self.positions - length if self.kind == "prefill" else self.positions - length + SPARE * self.rows
            request = native.ChatCompletionRequest(
                messages=self._text(slot, length),
                model="default",
                max_tokens=new,
                temperature=0.0,
                ignore_eos=True,
                stream=True,
            )
            return runner.send_chat_completion_request(request)

        def _text(self, slot: int, length: int) -> str:
            """Return a text of ``length`` tokens that begins with a letter of the row."""
            if (slot, length) not in self.texts:
                text = "".join(f"{chr(97 + (slot + at) % 26)} " for at in range(length))
                low, high = 0, len(text)
                while low < high:
                    middle = (low + high) // 2
                    if len(runner.tokenize_text(text[:middle], True, False)) < length:
                        low = middle + 1
                    else:
                        high = middle
                if len(runner.tokenize_text(text[:low], True, False)) != length:
                    raise RuntimeError(f"found no text of {length} tokens")
                self.texts[slot, length] = text[:low]
            return self.texts[slot, length]

    return MistralRs()
