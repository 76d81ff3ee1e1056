"""Measure a GPU: linears, and whole steps of models whose weights are zeros, in memory of their own.

Time does not depend on the values, and zeros need no hour of rounding. A share of bandwidth counts the weights alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from infeng_convert.api import parse_config
from infeng_cuda.backend import opened
from infeng_cuda.libraries import GPU
from infeng_inspect.api import OneOp
from infeng_kit.cases import reference

from infeng_core import _native as native
from infeng_core.api import Plugins, load_config
from infeng_core.api.engines import Batch, limits_of
from infeng_core.api.formats import LoadedModel, PackedTensor
from infeng_core.api.kernels import Selector
from infeng_core.formats.format_choice import choose
from infeng_core.formats.quant import builtin_format
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import layout
from infeng_core.plug.hookspecs import BACKENDS

BYTES_PER_S = {"H100": 3.35e12, "H200": 4.8e12, "A100": 2.0e12}
INT8_PER_S = {"H100": 1.979e15, "H200": 1.979e15, "A100": 0.624e15}
"""Operations; NVIDIA's data sheets."""
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
MODELS = {
    "1B": LLAMA | {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
                   "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 8192},
    "8B": LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192},
}  # fmt: skip
SIDES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # of an 8B model's linears
STEPS = ((1, 512, 1), (4, 512, 1), (16, 512, 1), (64, 512, 1), (1, 4000, 1), (1, 0, 512), (1, 0, 2048))
"""Sequences, tokens that each has in the cache, and tokens that each adds."""


def of_this(library: native.Library, known: dict[str, float]) -> float:
    """Return the figure of this GPU; NaN where it is not known."""
    assert library.device is not None
    return next((value for name, value in known.items() if name in library.device.name), float("nan"))


def seconds(kernel: native.Kernel, case: dict[str, object], calls: int, copies: int) -> float:
    rows = case["rows"][0]  # type: ignore[index]
    one = OneOp(case, kernel, reference(), [[(rows, 0)]], calls=calls, copies=copies, pool=native.Pool(1))
    times = []
    for _ in range(11):
        begin = time.perf_counter()
        one.once()
        times.append(time.perf_counter() - begin)
    return min(times[2:])


def linears(library: native.Library) -> None:
    """Print the speed of linears whose copies of weights together exceed the L2 cache."""
    bandwidth, peak = of_this(library, BYTES_PER_S), of_this(library, INT8_PER_S)
    for n, k in SIDES:
        for rows in (1, 16, 64, 512, 2048):
            case = {"op": "linear", "rows": [rows, rows], "workers": 1, "weight": "int4-p32", "act": "int8-row"}
            kernel = next(one for one in library.kernels if one.name == "linear_int4p32")
            nbytes = n // 16 * native.panel_bytes("int4-p32", k)
            copies = max(2, min(24, int(3e8 / nbytes)))
            few, many = (seconds(kernel, {**case, "n": n, "k": k}, calls, copies) for calls in (8, 40))
            took = (many - few) / 32
            shares = f"{nbytes / took / bandwidth:4.0%} of memory, {2 * rows * n * k / took / peak:4.0%} of int8"
            print(f"linear {n}x{k}, {rows:4} rows: {took * 1e6:7.1f} us, {shares}", flush=True)


def zeros(shape: ModelConfig, formats: dict[str, str]) -> LoadedModel:
    tensors = {}
    for spec in layout(shape).tensors:
        quant = builtin_format(formats[spec.name])
        panel = quant.panel_bytes(spec.k)
        memory = native.Arena(spec.panels * panel)
        tensors[spec.name] = PackedTensor(
            spec.name, formats[spec.name], spec.n, spec.k, spec.panels, panel, memory, 0, quant
        )
    vectors = {spec.name: np.ones(spec.size, np.float32) for spec in layout(shape).vectors}
    total = sum(tensor.nbytes for tensor in tensors.values())
    return LoadedModel(shape, Path(), tensors, vectors, Path(), formats, total, "zeros")


def batch(sequences: int, cached: int, added: int, context: int) -> Batch:
    rows, blocks = sequences * added, -(-(cached + added) // 16)
    tables = np.zeros((sequences, -(-context // 16)), np.int32)
    tables[:, :blocks] = np.arange(sequences * blocks).reshape(sequences, blocks)
    begins = np.arange(sequences, dtype=np.int32)
    segments = np.stack([begins * added, (begins + 1) * added, 0 * begins + cached, begins * tables.shape[1]], axis=1)
    return Batch(
        segments=[],
        tokens=np.ones(rows, np.int32),
        positions=np.tile(np.arange(cached, cached + added, dtype=np.int32), sequences),
        kv_segments=np.ascontiguousarray(segments, np.int32),
        block_tables=tables.reshape(-1),
        sample_rows=(begins + 1) * added - 1,
    )


def steps(name: str, cache: str, bandwidth: float) -> None:
    """Print the time of steps of a model, logits brought to the host."""
    shape = parse_config(MODELS[name], Path(name))
    overrides = {"backend.use": "cuda", "scheduler.max_batch_tokens": 2048, "scheduler.max_running": 64}
    overrides |= {"adapters.max_resident": 0, "kv_cache.memory": "8GB", "model.context": 4096, "kv_cache.dtype": cache}
    config = load_config(overrides=overrides, environ={})
    plugins = Plugins.discover(config)
    backend = plugins.get(BACKENDS, "cuda")
    model = zeros(shape, dict(choose(config, builtin_format).for_model(shape, builtin_format)))
    limits, _ = limits_of(config, shape, backend)
    executable = backend.compile(model, config, limits, Selector(plugins, config, plugins.cpu, GPU))
    for sequences, cached, added in STEPS:
        asked, times = batch(sequences, cached, added, limits.context), []
        for _ in range(12):
            begin = time.perf_counter()
            executable.run(asked)
            times.append(time.perf_counter() - begin)
        took = statistics.median(times[3:])
        figures = (
            f"{sequences * added / took:7.0f} tokens/s, weights at {model.nbytes / took / bandwidth:4.0%} of memory"
        )
        what = f"{name}, {cache}: {sequences} x {added} tokens behind {cached}"
        print(f"{what}: {took * 1e3:.2f} ms, {figures}", flush=True)
    executable.close()


def main() -> None:
    library = opened(GPU)
    assert library.device is not None
    print(library.device.name or f"no GPU: {library.device.why}")
    if not library.device.name:
        sys.exit(1)
    linears(library)
    for name, cache in (("1B", "int8"), ("8B", "int8"), ("8B", "int8i")):
        steps(name, cache, of_this(library, BYTES_PER_S))


if __name__ == "__main__":
    main()
