"""ik_llama.cpp, a fork of llama.cpp with kernels of its own for CPUs, as the wheel of ik-llama-cpp-python.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's. The
wheel is built for AVX2, so processors with AVX-512 do not run their fastest kernels. Its Python interface has no
adapters.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

NAME = "ik_llama_cpp"
ABOUT = "ik_llama.cpp (ik-llama-cpp-python), a wheel for AVX2"
REQUIREMENTS = ("ik-llama-cpp-python==0.1.5", "gguf>=0.17", "numpy>=1.26")
PIP_OPTIONS = ("--only-binary", "ik-llama-cpp-python")
IMPORTS = ("ik_llama_cpp", "gguf")
READS_GGUF = True
MODEL_FILE = "model.gguf"
FORMATS = {
    **dict.fromkeys(("int4-g64", "int4-g32", "int4-p32"), "q4_0"),
    **dict.fromkeys(("int8-row", "int8-g32"), "q8_0"),
    **dict.fromkeys(("bf16", "f16", "f32"), "f16"),
}
"""Our weight format -> the GGUF type to compare with."""

OPTIONS = {"flash_attn": "best", "kv": "f16", "ubatch": "512", "repack": "on"}
"""``flash_attn``: on, off, or best: on for one row and off for several, since version 0.1.5 ends at an assertion of its
flash attention for some shapes with several rows. ``repack``: on, the rows of weights are interleaved when the model is
loaded. ``kv``: f16 or q8_0. ``ubatch``: rows of one pass."""

CHOICES = {"flash_attn": ("best", "on", "off"), "kv": ("f16", "q8_0"), "repack": ("on", "off")}

TYPES = {"f16": 1, "q8_0": 8}  # numbers of ggml


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return the commands of this project, which writes f16, and of the fork's quantizer."""
    from infeng_bench.processes import INFENG

    plain, target = str(folder / "f16.gguf"), str(folder / MODEL_FILE)
    if kind == "f16":
        return [[*INFENG, "convert", str(source), target, "--format", "f16"]]
    export = [*INFENG, "convert", str(source), plain, "--format", "f16"]
    delete = [str(tools / "python"), "-P", "-c", "import os, sys; os.remove(sys.argv[1])", plain]
    return [export, [str(tools / "ik-llama-quantize"), "quantize", plain, target, kind.upper()], delete]


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load a GGUF; raises RuntimeError if ik_llama.cpp refuses it."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from importlib.metadata import version

    from ik_llama_cpp import _ctypes_api as native

    shared = runpy.run_path(str(Path(__file__).with_name("llama_rows.py")))
    native.llama_backend_init()
    parameters = native.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.repack_tensors = options["repack"] == "on"
    weights = native.llama_model_load_from_file(model.encode(), parameters)
    if not weights:
        raise RuntimeError(f"ik_llama.cpp cannot load {model}")

    class IkLlamaCpp:
        vocab = native.llama_vocab_n_tokens(native.llama_model_get_vocab(weights))

        def __init__(self) -> None:
            self.shape: tuple[int, int] | None = None
            self.context: Any = None
            self.rows = shared["Rows"](native, self.vocab)

        def introduction(self) -> dict[str, Any]:
            bits = {"f16": 16.0, "q8_0": 8.5}[options["kv"]]
            return {
                "version": version("ik-llama-cpp-python"),
                "kernels": ["AVX2"],
                "bytes_per_token": shared["weights_read"](model),
                "details": {"kv_bytes_per_position": int(shared["cache_values"](model) * bits / 8)},
            }

        def open(self, kind: str, rows: int, positions: int) -> None:
            self.rows.reset(rows)
            shape = (rows, -(-positions // 256) * 256)
            if self.shape == shape:
                return
            if self.context:
                native.llama_free(self.context)
            settings = native.llama_context_default_params()
            settings.n_seq_max = rows
            settings.n_ctx = shape[0] * shape[1]
            settings.n_batch, settings.n_ubatch = shared["BATCH"], int(options["ubatch"])
            settings.n_threads = settings.n_threads_batch = threads
            settings.flash_attn = options["flash_attn"] == "on" or (options["flash_attn"] == "best" and rows == 1)
            settings.type_k = settings.type_v = TYPES[options["kv"]]
            self.context = native.llama_init_from_model(weights, settings)
            if not self.context:
                raise RuntimeError(f"ik_llama.cpp cannot make a context of {rows} x {positions} positions")
            self.shape = shape

        def stop(self) -> None:
            self.rows.reset(0)
            native.llama_kv_cache_clear(self.context)

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.rows.admit(slot, prompt)

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            return list(self.rows.advance(self.context, slots))

    return IkLlamaCpp()
