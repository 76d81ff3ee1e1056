"""mistral.rs through its Python package: weights are quantized when they are loaded.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's. The
package takes text, so a prompt is text of as many tokens as asked. Prompts are computed one after the other, since
version 0.9.5 fails at several prompts at a time with quantized weights on CPUs. Rows of different adapters decode in
one batch: a request names its adapter.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

NAME = "mistralrs"
ABOUT = "mistral.rs, a wheel for any x86-64 processor"
REQUIREMENTS = ("mistralrs==0.9.5", "numpy>=1.26")
PIP_OPTIONS = ("--only-binary", "mistralrs")
IMPORTS = ("mistralrs",)
TAKES_ADAPTERS = True
SERVES = False  # its prompts are texts of a length, its answers are not token ids
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
    words = {"model_id": model, "tokenizer_json": str(Path(model, "tokenizer.json"))}

    def runner_of(which: Any) -> Any:
        return native.Runner(
            which=which,
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
        mixes = True

        def __init__(self) -> None:
            self.runner = runner_of(native.Which.Plain(**words))
            self.adapters: list[str] | None = None  # loaded ones; None: the runner has no places for them
            self.texts: dict[tuple[int, int], str] = {}
            self.waiting: dict[int, int] = {}  # the lengths of prompts that have not begun, by slot
            self.users: dict[int, str | None] = {}  # the adapter of each slot
            self.streams: dict[int, Any] = {}  # by slot

        def introduction(self) -> dict[str, Any]:
            return {
                "version": version("mistralrs"),
                "kernels": [f"weights {kind}"],
                "bytes_per_token": None,
                "details": {"kv_bytes_per_position": 2 * layers * heads * width * 2},
            }

        def drop_adapters(self) -> None:
            for name in self.adapters or ():
                self.runner.unload_lora_adapter(name)
            self.adapters = None if self.adapters is None else []

        def load_adapter(self, name: str, path: str, scale: float) -> int:
            if self.adapters is None:
                del self.runner  # its weights go before they are loaded again
                self.runner, self.adapters = runner_of(native.Which.Lora(adapters=[], **words)), []
            with tempfile.TemporaryDirectory() as held:
                chosen = path if scale == 1 else _scaled(path, scale, held)
                nbytes: int = self.runner.load_lora_adapter(name, chosen).bytes
            self.adapters.append(name)
            return nbytes

        def open(self, kind: str, rows: int, positions: int) -> None:
            self.kind, self.rows, self.positions = kind, rows, positions

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.waiting[slot] = len(prompt)
            self.users[slot] = adapter

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            for slot in slots:
                if slot in self.waiting:
                    self.streams[slot] = self._begin(slot, self.waiting.pop(slot))
                if next(self.streams[slot], None) is None:
                    raise RuntimeError(f"row {slot} ended before the last step")
            return [(slot, 0) for slot in slots]

        def stop(self) -> None:
            for stream in self.streams.values():
                for _ in stream:  # its thread would go on decoding beside the next measurement
                    pass
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
                adapter=self.users[slot],
            )
            return self.runner.send_chat_completion_request(request)

        def _text(self, slot: int, length: int) -> str:
            """Return a text of ``length`` tokens that begins with a letter of the row."""
            if (slot, length) not in self.texts:
                text = "".join(f"{chr(97 + (slot + at) % 26)} " for at in range(length))
                low, high = 0, len(text)
                while low < high:
                    middle = (low + high) // 2
                    if len(self.runner.tokenize_text(text[:middle], True, False)) < length:
                        low = middle + 1
                    else:
                        high = middle
                if len(self.runner.tokenize_text(text[:low], True, False)) != length:
                    raise RuntimeError(f"found no text of {length} tokens")
                self.texts[slot, length] = text[:low]
            return self.texts[slot, length]

    return MistralRs()


def _scaled(path: str, scale: float, folder: str) -> str:
    """Return a PEFT directory in ``folder`` whose alpha is ``scale`` times that of ``path``."""
    config = json.loads(Path(path, "adapter_config.json").read_text())
    config["lora_alpha"] *= scale
    Path(folder, "adapter_config.json").write_text(json.dumps(config))
    Path(folder, "adapter_model.safetensors").symlink_to(Path(path, "adapter_model.safetensors").resolve())
    return folder
