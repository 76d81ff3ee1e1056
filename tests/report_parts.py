"""Results of the kinds that a report has charts of, made without measuring anything."""

from __future__ import annotations

from typing import Any

from infeng_bench.engine.work import Work
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.load.requests import Job, Reply, Served
from infeng_bench.reports import results
from infeng_peers import adapter_comparison, comparison
from infeng_peers.comparison import Round

CEILINGS = Roofline(2, 3e10, 1e10, {"avx2": 1e11, "avx512_vnni": 4e11}, 3e9, {})
COMMON: dict[str, Any] = {"model": "m", "format": "int4-g64", "threads": 2, "seed": 0}
TOLD: dict[str, Any] = {"seconds_in_all": 1.0, "engine_details": {}}


def comparison_of(work: str, peer: float) -> dict[str, Any]:
    """Return the figures of one work against a peer that is ``peer`` times as fast as the other one."""
    found = [Round({"infeng": 50.0 + i, "openvino": 10 * peer, "llama_cpp": 10.0}, {}, {}) for i in range(6)]
    found = [Round(one.rates, dict.fromkeys(one.rates, 1.0), {}) for one in found]
    told: dict[str, Any] = {"infeng": {}, "openvino": {}, "llama_cpp": {}}
    return comparison.compared(Work.parse(work), found, told, None)


def compared() -> dict[str, Any]:
    """Return a comparison of one work."""
    single = comparison_of("decode:rows=1,context=1024", 2.0)
    work = single.pop("work")
    return results.record("compare", {**TOLD, **single}, work=work, **COMMON)


def compared_twice() -> dict[str, Any]:
    """Return a comparison of two works, of a model whose name is markup."""
    several = [comparison_of("prefill:rows=4,context=1024", 3.0), comparison_of("decode:rows=16,context=512", 4.0)]
    return results.record("compare", {**TOLD, "measurements": several}, **{**COMMON, "model": "<i>x</i>"})


def compared_over_rows_and_context() -> dict[str, Any]:
    """Return a comparison of several numbers of rows, and of several contexts."""
    works = [f"decode:rows={rows},context=512" for rows in (1, 4, 64)] + ["decode:rows=1,context=16384"]
    return results.record("compare", {**TOLD, "measurements": [comparison_of(work, 2.0) for work in works]}, **COMMON)


def gemms() -> dict[str, Any]:
    """Return two readings of a linear with the machine's ceilings."""
    facts = {"linear": "layers.*.qkv_proj", "n": 2560, "k": 2048, "format": "int4-g64", "copies": 1}
    lines = [
        {**facts, "kernel": f"avx512/k{rows}", "rows": rows, "gmacs_per_s": 10.0 * rows, "bytes_per_s": 2e10 / rows}
        for rows in (1, 4)
    ]
    for line in lines:
        line |= {"seconds": {"median": 1e-3, "min": 1e-3, "max": 1e-3}, "macs_per_cycle": 2.0}
    return results.record("gemm", {"measurements": lines, "roofline": CEILINGS.to_dict()}, **COMMON)


def ceilings() -> dict[str, Any]:
    """Return what a machine can do."""
    return results.record("roofline", CEILINGS.to_dict(), threads=2)


def swept() -> dict[str, Any]:
    """Return a sweep over one and two adapters, ranks 8 and 16, on two engines."""
    pace = {("infeng", 8): 0.1, ("infeng", 16): 0.125, ("llama_cpp", 8): 0.5, ("llama_cpp", 16): 0.625}
    cells = []
    for count, rank in ((1, 8), (2, 8), (1, 16), (2, 16)):
        engines = {}
        for name in ("infeng", "llama_cpp"):
            step = pace[name, rank] * count
            job = Job(0.0, [1] * 4, 2, "a0")
            reply = Reply(job, 0.0, 0.0, [step, 2 * step], 2, [5, 6], ended=2 * step)
            engines[name] = {"mixed": [Served([reply], 2 * step, step, 1000)] * 5}
        figures = adapter_comparison.compared(engines, 1, is_closed=True)
        times = {"adapter_load_ms": 9.0, "adapter_swap_ms": 3.0}
        figures["engines"] = {name: {**one, **times} for name, one in figures["engines"].items()}
        cells.append({"adapters": count, "rank": rank, "targets": "all", **figures, **times})
    facts: dict[str, Any] = {"model": "m", "format": "int4-g64", "threads": 1, "seed": 0, "num_requests": 1}
    facts |= {"concurrency": 4, "zipf_alpha": 1.3, "include_base": False, "arrival": "closed", "lora_scale": 1.0}
    told = {"seconds_in_all": 1.0, "engine_details": {}, "measurements": cells}
    return results.record("zipf", told, warmup=1, iters=5, **facts)
