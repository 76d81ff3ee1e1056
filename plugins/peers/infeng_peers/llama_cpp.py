"""llama.cpp through llama-cpp-python, built from source for this processor.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's and uses
llama.cpp's low-level interface: several sequences decode in one ``llama_batch``.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

NAME = "llama_cpp"
ABOUT = "llama.cpp (llama-cpp-python), built from source with native flags, its server too; ten minutes on few cores"
REQUIREMENTS = ("llama-cpp-python==0.3.36", "gguf>=0.17", "numpy>=1.26")
PIP_OPTIONS = ("--no-binary", "llama-cpp-python", "--no-cache-dir")  # a cached wheel may be built for another machine
IMPORTS = ("llama_cpp", "gguf")
NEEDS_COMPILER = True
READS_GGUF = True
TAKES_ADAPTERS = True
MODEL_FILE, ADAPTER_FILE = "model.gguf", "adapter.gguf"
FORMATS = {
    **dict.fromkeys(("int4-g64", "int4-g32", "int4-p32"), "q4_0"),
    **dict.fromkeys(("int8-row", "int8-g32"), "q8_0"),
    **dict.fromkeys(("bf16", "f16", "f32"), "f16"),
}
"""Our weight format -> the GGUF type to compare with. Q4_0, in groups of 32, is llama.cpp's fastest 4-bit type."""

OPTIONS = {"flash_attn": "best", "kv": "f16", "ubatch": "512", "turns": "rotate", "contexts": "one", "unified": "off"}
"""``flash_attn``: on, off, auto, or best: on for prefill and off for decoding, the fastest choice in our measurements
(with it, 16 rows decode five times slower); off for requests with adapters. ``kv``: f16, or q8_0, which needs flash
attention. ``ubatch``: rows of one pass. For requests with adapters: ``turns``: rotate, drain or sort, see
``slots.py``; ``contexts``: one whose adapter changes from call to call, or one per adapter; ``unified``: on or off,
one cache for all sequences. ``contexts`` and ``unified`` made no significant difference in our measurements."""

CHOICES = {
    "flash_attn": ("best", "on", "off", "auto"),
    "kv": ("f16", "q8_0"),
    "turns": ("rotate", "drain", "sort"),
    "contexts": ("one", "adapter"),
    "unified": ("on", "off"),
}

SERVER_FLAGS = (
    "-DLLAVA_BUILD=OFF",  # multimodal input comes with the tools
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_TOOLS_INSTALL=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
)
"""llama.cpp's programs, ``llama-server`` among them, are built and installed with the libraries, without the web page,
without TLS and without downloads."""


QUANTIZE = (
    "import os, sys, llama_cpp as native; source, out, kind = sys.argv[1:]; "
    "settings = native.llama_model_quantize_default_params(); "
    "settings.ftype = getattr(native, 'LLAMA_FTYPE_MOSTLY_' + kind.upper()); "
    "status = native.llama_model_quantize(source.encode(), out.encode(), settings); "
    "os.remove(source); sys.exit(status != 0)"
)
"""A program of the peer's interpreter: llama.cpp's quantizer with its defaults, so the head of a Q4_0 file is Q6_K."""


def build_environment(features: Collection[str], gcc: int | None) -> dict[str, str]:
    """Return environment variables of the build. gcc: major version of the compiler, None if it is not GCC.

    GCC before 13 drops the stores to the tile configuration of llama.cpp's ``_tile_loadconfig``, so that the first AMX
    product raises a general protection fault; for these compilers dead-store elimination is turned off.
    """
    flags = ["-DGGML_NATIVE=ON", *SERVER_FLAGS]
    if "amx_tile" in features and gcc is not None and gcc < 13:
        flags.append('"-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"')
    return {"CMAKE_ARGS": " ".join(flags)}


def export_commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
    """Return the commands of this project, which writes f16, and of llama.cpp's quantizer."""
    from infeng_bench.processes import INFENG

    plain, target = str(folder / "f16.gguf"), str(folder / MODEL_FILE)
    export = [*INFENG, "convert", str(source), target if kind == "f16" else plain, "--format", "f16"]
    quantize = [str(tools / "python"), "-P", "-c", QUANTIZE, plain, target, kind]
    return [export] if kind == "f16" else [export, quantize]


def adapter_commands(adapter: Path, base: Path, folder: Path) -> list[list[str]]:
    """Return the command that writes a GGUF of a PEFT directory."""
    program = [sys.executable, "-P", "-m", "infeng_peers.export_gguf_adapter"]
    return [[*program, str(adapter), str(base), str(folder / ADAPTER_FILE)]]


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load a GGUF; raises RuntimeError if llama.cpp refuses it."""
    import ctypes

    import llama_cpp as native

    shared = runpy.run_path(str(Path(__file__).with_name("llama_rows.py")))

    def log(_level: int, text: bytes, _data: Any) -> None:
        sys.stderr.write(text.decode(errors="replace"))

    callback = native.llama_log_callback(log)
    native.llama_log_set(callback, ctypes.c_void_p(0))
    native.llama_backend_init()
    parameters = native.llama_model_default_params()
    parameters.n_gpu_layers = 0
    weights = native.llama_model_load_from_file(model.encode(), parameters)
    if not weights:
        raise RuntimeError(f"llama.cpp cannot load {model}")
    types = {"f16": native.GGML_TYPE_F16, "q8_0": native.GGML_TYPE_Q8_0}
    flash = {
        "auto": native.LLAMA_FLASH_ATTN_TYPE_AUTO,
        "on": native.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": native.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }

    class LlamaCpp:
        vocab = native.llama_vocab_n_tokens(native.llama_model_get_vocab(weights))

        mixes = False  # a llama_context has one set of adapters for all rows of a call

        def __init__(self) -> None:
            self.shape: tuple[object, ...] | None = None
            self.context: Any = None
            self.contexts: dict[str | None, Any] = {}
            self.adapters: dict[str | None, tuple[Any, float]] = {}
            self.rows = shared["Rows"](native, self.vocab)
            self.log = callback  # keeps the callback alive: native code calls it as long as the model exists

        def introduction(self) -> dict[str, Any]:
            told = native.llama_print_system_info().decode().replace("CPU :", "").split("|")
            layers, heads = native.llama_model_n_layer(weights), native.llama_model_n_head_kv(weights)
            width = native.llama_model_n_embd(weights) // native.llama_model_n_head(weights)
            bits = {"f16": 16.0, "q8_0": 8.5}[options["kv"]]
            return {
                "version": native.__version__,
                "kernels": [word.removesuffix("= 1").strip() for word in map(str.strip, told) if word.endswith("= 1")],
                "bytes_per_token": shared["weights_read"](model),
                "details": {
                    "context": native.llama_model_n_ctx_train(weights),
                    "weight_bytes": native.llama_model_size(weights),
                    "kv_bytes_per_position": int(2 * layers * heads * width * bits / 8),
                },
            }

        def open(self, kind: str, rows: int, positions: int) -> None:
            users = {"one": (), "adapter": self.adapters}[options["contexts"]] if kind == "serve" else ()
            best = "on" if kind == "prefill" or options["kv"] != "f16" else "off"
            self._allocate([None, *users], rows, positions, best)
            self.context = self.contexts[None]

        def stop(self) -> None:
            self.rows.reset(0)
            native.llama_memory_clear(native.llama_get_memory(self.context), False)

        def drop_adapters(self) -> None:
            self._free()
            for adapter, _ in self.adapters.values():
                native.llama_adapter_lora_free(adapter)
            self.adapters = {}

        def load_adapter(self, name: str, path: str, scale: float) -> int:
            adapter = native.llama_adapter_lora_init(weights, path.encode())
            if not adapter:
                raise RuntimeError(f"llama.cpp cannot load the adapter {path}")
            self.adapters[name] = adapter, scale
            return int(shared["tensor_bytes"](path))

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.rows.admit(slot, prompt)
            self.users[slot] = adapter
            memory = native.llama_get_memory(self.contexts.get(adapter, self.contexts[None]))
            native.llama_memory_seq_rm(memory, slot, -1, -1)

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            user = self.users[slots[0]]
            self.context = self.contexts.get(user, self.contexts[None])
            self._apply(user)
            return list(self.rows.advance(self.context, slots))

        def release(self, slot: int) -> None:
            self.rows.admit(slot, [])

        def _allocate(self, users: list[str | None], rows: int, positions: int, flash_attn: str) -> None:
            """Make or clear a context for each of ``users``."""
            positions = -(-positions // 256) * 256
            shape = (*users, rows, positions, flash_attn)
            self.rows.reset(rows)
            self.users: list[str | None] = [None] * rows
            if self.shape == shape:
                for context in self.contexts.values():
                    native.llama_memory_clear(native.llama_get_memory(context), False)
                return
            self._free()
            settings = native.llama_context_default_params()
            settings.n_seq_max = rows
            settings.n_ctx = rows * positions  # each sequence has a cache of its own
            settings.n_batch, settings.n_ubatch = shared["BATCH"], int(options["ubatch"])
            settings.n_threads = settings.n_threads_batch = threads
            settings.flash_attn_type = flash[options["flash_attn"].replace("best", flash_attn)]
            settings.type_k = settings.type_v = types[options["kv"]]
            settings.kv_unified = {"on": True, "off": False}[options["unified"]]
            for user in users:
                self.contexts[user] = native.llama_init_from_model(weights, settings)
                if not self.contexts[user]:
                    raise RuntimeError(f"llama.cpp cannot make a context of {rows} x {positions} positions")
                self._apply(user)
            self.shape = shape

        def _free(self) -> None:
            for context in self.contexts.values():
                native.llama_free(context)
            self.contexts, self.shape = {}, None

        def _apply(self, user: str | None) -> None:
            """Set the user's adapter in its context; llama.cpp does nothing if it is set already."""
            context = self.contexts.get(user, self.contexts[None])
            kept = [self.adapters[user]] if user is not None else []
            pointers = (native.llama_adapter_lora_p_ctypes * len(kept))(*(adapter for adapter, _ in kept))
            scales = (ctypes.c_float * len(kept))(*(scale for _, scale in kept))
            if native.llama_set_adapters_lora(context, pointers, len(kept), scales) != 0:
                raise RuntimeError(f"llama.cpp does not take the adapter {user}")

    return LlamaCpp()
