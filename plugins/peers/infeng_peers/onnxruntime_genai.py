"""ONNX Runtime GenAI on its CPU provider.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's. A
generator of GenAI is a batch of sequences that begin together and share one adapter, so rows of different adapters are
generators that take turns.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

NAME = "onnxruntime_genai"
ABOUT = "ONNX Runtime GenAI on CPUs, with PyTorch for its model builder"
REQUIREMENTS = (
    "onnxruntime-genai==0.18.0",
    "onnxruntime==1.32.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
    "torch==2.13.0",
    "transformers==5.24.0",
    "peft==0.21.2",
    "safetensors>=0.4.3",
)
IMPORTS = ("onnxruntime_genai", "onnxruntime", "onnx", "onnx_ir", "torch", "transformers", "peft")
TAKES_ADAPTERS = True
ADAPTER_FILE = "adapter.onnx_adapter"
FORMATS = {
    **dict.fromkeys(("int4-g64", "int4-g32", "int4-p32"), "int4"),
    **dict.fromkeys(("int8-row", "int8-g32"), "int8"),
    **dict.fromkeys(("bf16", "f16", "f32"), "fp32"),
}
"""Our weight format -> the model builder's precision. On CPUs everything but the weights of products is float32."""

OPTIONS = {"turns": "rotate", "without": "plain"}
"""``turns``: rotate, drain or sort, see ``slots.py``. ``without``: the model of rows without an adapter: plain, the one
that is exported for no adapters; or lora, the one whose graph has places for adapters, all of them empty."""

CHOICES = {"turns": ("rotate", "drain", "sort"), "without": ("plain", "lora")}


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return the command that runs GenAI's model builder, once without and once with places for adapters."""
    return [[*_exporter(tools), "model", str(source), str(folder), kind]]


def adapter_commands(adapter: Path, base: Path, folder: Path) -> list[list[str]]:
    """Return the command that writes a file of ONNX Runtime's adapters."""
    from infeng_peers.environment import Environment
    from infeng_peers.known import peer

    tools = Environment(peer(NAME)).tools
    return [[*_exporter(tools), "adapter", str(adapter), str(folder / ADAPTER_FILE)]]


def _exporter(tools: Path) -> list[str]:
    return [str(tools / "python"), "-P", str(Path(__file__).with_name("onnx_export.py"))]


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load an exported directory; the graph for adapters is loaded with the first of them."""
    import numpy as np
    import onnxruntime
    import onnxruntime_genai as native

    def loaded(name: str) -> Any:
        config = native.Config(str(Path(model, name)))
        wanted = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": wanted}}}))
        return native.Model(config)

    shape = json.loads(Path(model, "plain", "genai_config.json").read_text())["model"]
    sizes = shape["decoder"]
    weight_bytes, read = _weights(str(Path(model, "plain", "model.onnx")))

    class Cohort:
        """Sequences of one length that pass through the model together to their end, all with one adapter."""

        def __init__(self, generator: Any, slots: list[int], prompts: list[list[int]]) -> None:
            self.generator, self.slots, self.running = generator, slots, set(slots)
            generator.append_tokens(np.array(prompts, np.int32))

        def step(self) -> list[tuple[int, int]]:
            """Generate a token for each sequence; return those of the sequences that still run."""
            self.generator.generate_next_token()
            tokens = zip(self.slots, self.generator.get_next_tokens(), strict=True)
            return [(slot, int(token)) for slot, token in tokens if slot in self.running]

    class OnnxRuntimeGenai:
        vocab = shape["vocab_size"]
        mixes = False  # a generator has one adapter for all its sequences

        def __init__(self) -> None:
            self.models = {"plain": loaded("plain")}
            self.adapters: Any = None
            self.names: list[str] = []
            self.positions = 0
            self.cohorts: list[Cohort] = []
            self.prompts: dict[int, tuple[list[int], str | None]] = {}

        def introduction(self) -> dict[str, Any]:
            values = sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_size"]
            return {
                "version": f"{native.__version__}, onnxruntime {onnxruntime.__version__}",
                "kernels": ["CPUExecutionProvider"],
                "bytes_per_token": read,
                "details": {
                    "context": shape["context_length"],
                    "weight_bytes": weight_bytes,
                    "kv_bytes_per_position": 2 * values * 4,
                },
            }

        def drop_adapters(self) -> None:
            self.stop()
            for name in self.names:
                self.adapters.unload(name)
            self.names = []

        def load_adapter(self, name: str, path: str, scale: float) -> int:
            if self.adapters is None:
                self.models["lora"] = loaded("lora")
                self.adapters = native.Adapters(self.models["lora"])
            with tempfile.TemporaryDirectory() as held:
                self.adapters.load(path if scale == 1 else _scaled(path, scale, str(Path(held, "scaled"))), name)
            self.names.append(name)
            return Path(path).stat().st_size

        def open(self, kind: str, rows: int, positions: int) -> None:
            self.stop()
            self.positions = positions

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.prompts[slot] = prompt, adapter

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            """Begin new sequences, those of one adapter and length together; else move the cohorts of ``slots``."""
            fresh: dict[tuple[str | None, int], list[int]] = {}
            for slot in slots:
                if slot in self.prompts:
                    prompt, adapter = self.prompts[slot]
                    fresh.setdefault((adapter, len(prompt)), []).append(slot)
            for (adapter, _), together in fresh.items():
                prompts = [self.prompts.pop(slot)[0] for slot in together]
                self.cohorts.append(Cohort(self._generator(len(together), adapter), together, prompts))
            count = len(fresh)
            moved = self.cohorts[-count:] if count else [one for one in self.cohorts if one.running & {*slots}]
            return [token for cohort in moved for token in cohort.step()]

        def release(self, slot: int) -> None:
            for cohort in self.cohorts:
                cohort.running.discard(slot)
            self.cohorts = [cohort for cohort in self.cohorts if cohort.running]

        def stop(self) -> None:
            self.cohorts, self.prompts = [], {}

        def _generator(self, rows: int, adapter: str | None) -> Any:
            kind = options["without"] if adapter is None and "lora" in self.models else "plain"
            chosen = self.models[kind if adapter is None else "lora"]
            parameters = native.GeneratorParams(chosen)
            length = {"min_length": self.positions, "max_length": self.positions}  # past end tokens
            parameters.set_search_options(batch_size=rows, do_sample=False, **length)
            generator = native.Generator(chosen, parameters)
            if adapter is not None:
                generator.set_active_adapter(self.adapters, adapter)
            return generator

    return OnnxRuntimeGenai()


def _weights(graph: str) -> tuple[int, int]:
    """Return the bytes of all weights, and of those that one token reads: all but tables of which rows are taken."""
    import math

    import onnx

    model = onnx.load(graph, load_external_data=False).graph
    sizes = {
        one.name: math.prod(one.dims) * onnx.helper.tensor_dtype_to_np_dtype(one.data_type).itemsize
        for one in model.initializer
    }
    products = {name for node in model.node if "Gather" not in node.op_type for name in node.input}
    tables = {"cos_cache", "sin_cache"}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name in products - tables)


def _scaled(path: str, scale: float, out: str) -> str:
    """Write an adapter's file with its B multiplied by ``scale``, since GenAI has no scale at run time."""
    import onnxruntime

    adapter = onnxruntime.AdapterFormat.read_adapter(path)
    held = adapter.get_parameters()  # the arrays below are views of these
    factors = {name: scale if ".lora_B." in name else 1.0 for name in held}
    tensors = {name: value.numpy() * value.numpy().dtype.type(factors[name]) for name, value in held.items()}
    adapter.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(one) for name, one in tensors.items()})
    adapter.export_adapter(out)
    return out
