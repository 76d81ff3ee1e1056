"""OpenVINO GenAI: its continuous-batching pipeline on the CPU.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "openvino"
ABOUT = "OpenVINO GenAI, continuous batching"
REQUIREMENTS = (
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "optimum-intel==2.2.0",
    "nncf==3.4.0",
    "torch==2.13.0",
    "transformers==5.5.4",
)
UNWANTED = ("torchvision",)  # a dependency whose version for this torch breaks the import of transformers
IMPORTS = ("openvino_genai", "openvino_tokenizers", "optimum.intel", "nncf", "torch")
FORMATS = {
    "int4-g64": "int4-g64",
    "int4-g32": "int4-g32",
    "int4-p32": "int4-g64",
    "int8-row": "int8",
    "bf16": "fp16",
    "f16": "fp16",
}
"""Our weight format -> the exporter's; its int4 is symmetric, with an int8 embedding and head."""

OPTIONS = {"batch_tokens": "512", "cache_gb": "2", "precision": "best"}
"""``batch_tokens``: of one step. ``cache_gb``: of KV cache. ``precision`` of activations: f32, bf16, default
(OpenVINO's choice: bf16 with AMX), or best: f32 for decoding and the default for prefill, the fastest choice in our
measurements (one row decodes 1.6 times faster at f32, prefill runs 1.6 times faster at bf16)."""

CHOICES = {"precision": ("best", "f32", "bf16", "default")}

TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return the commands of OpenVINO's tools that write the model and the tokenizer into ``folder``."""
    weights = ["--weight-format", kind.partition("-")[0]]
    if kind.startswith("int4"):
        weights += ["--group-size", kind.partition("-g")[2], "--sym", "--ratio", "1.0"]
    export = ["export", "openvino", "--model", str(source), "--task", "text-generation-with-past", *weights]
    code = (
        "import pathlib, shutil, sys; source, folder, text = sys.argv[1:]; target = pathlib.Path(folder, 'tokenizer'); "
    )
    code += "target.mkdir(); shutil.copy(pathlib.Path(source, 'tokenizer.json'), target); "
    code += "(target / 'tokenizer_config.json').write_text(text)"
    return [
        [str(tools / "optimum-cli"), *export, "--disable-convert-tokenizer", str(folder)],
        [str(tools / "python"), "-c", code, str(source), str(folder), json.dumps(TOKENIZER)],
        [str(tools / "convert_tokenizer"), str(folder / "tokenizer"), "--with-detokenizer", "-o", str(folder)],
    ]


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load an exported directory; raises RuntimeError if OpenVINO refuses it."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    shape = json.loads(Path(model, "config.json").read_text())
    heads, layers = shape["num_key_value_heads"], shape["num_hidden_layers"]
    width = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = int(options["batch_tokens"])
    scheduler.cache_size = int(options["cache_gb"])
    scheduler.max_num_seqs = 256
    scheduler.enable_prefix_caching = False  # every measurement computes its prompts
    scheduler.dynamic_split_fuse = True
    weight_bytes, read = _weights(model, shape)
    precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")

    def pipeline_at(chosen: str) -> Any:
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if chosen != "default":
            properties["INFERENCE_PRECISION_HINT"] = chosen
        return genai.ContinuousBatchingPipeline(model, scheduler_config=scheduler, device="CPU", properties=properties)

    class OpenVino:
        vocab = shape["vocab_size"]

        def __init__(self) -> None:
            self.pipeline: Any = None
            self.handles: dict[int, Any] = {}  # by slot
            self.begun: set[int] = set()  # slots of sequences that have a token
            self.next_id = 0
            self._choose("decode")

        def introduction(self) -> dict[str, Any]:
            return {
                "version": genai.__version__,
                "kernels": [f"default precision {precision.to_string()}"],
                "bytes_per_token": read,
                "details": {
                    "weight_bytes": weight_bytes,
                    "kv_bytes_per_position": 2 * layers * heads * (width + 8),  # u8, f32 scale and zero point
                    "kv": "u8",
                },
            }

        def open(self, kind: str, rows: int, positions: int) -> None:
            self._choose(kind)
            # For decoding, enough also for sequences that decode while others prefill.
            self.steps = 1 if kind == "prefill" else rows * positions

        def _choose(self, kind: str) -> None:
            chosen = options["precision"].replace("best", "f32" if kind == "decode" else "default")
            if chosen != getattr(self, "precision", None):
                self.pipeline = None  # frees the weights before they are loaded again
                self.pipeline = pipeline_at(chosen)
                self.precision = chosen

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            config = genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = self.steps
            config.ignore_eos, config.do_sample = True, False
            ids = openvino.Tensor(np.array([prompt], np.int64))
            self.handles[slot] = self.pipeline.add_request(self.next_id, ids, config)
            self.next_id += 1

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            self.pipeline.step()
            while not all(slot in self.begun or self.handles[slot].can_read() for slot in slots):
                self.pipeline.step()
            self.begun.update(slots)
            return [(slot, token) for slot in slots for token in self._read(self.handles[slot])]

        def stop(self) -> None:
            for handle in self.handles.values():
                handle.cancel()
            while self.pipeline.has_non_finished_requests():
                self.pipeline.step()
            self.handles, self.begun = {}, set()

        def _read(self, handle: Any) -> list[int]:
            tokens: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            return tokens

    return OpenVino()


def _weights(model: str, shape: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes of all weights, and of the weights that one token reads: all but an untied embedding."""
    import openvino

    graph = openvino.Core().read_model(Path(model, "openvino_model.xml"))
    total = embedding = 0
    for node in graph.get_ops():
        if node.get_type_name() == "Constant":
            total += node.get_byte_size()
            if "embed_tokens" in node.get_friendly_name():
                embedding += node.get_byte_size()
    return total, total - (0 if shape.get("tie_word_embeddings") else embedding)
