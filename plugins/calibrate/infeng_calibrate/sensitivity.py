"""The loss of each tensor in each format alone: the divergence of a model in which nothing else is quantized.

All these models pass the layers together, so every tensor is read once and one tensor is in memory at a time. Each
linear op adds a stream of hidden states for each format of its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from infeng_convert.api import Checkpoint, fitting, gather_vector, is_inner, pack_tensor, weights_of
from numpy.typing import NDArray

from infeng_calibrate.forward import Forward, Runner
from infeng_calibrate.stages import Stage
from infeng_core.api.formats import ExpertLinear, FormatLookup, Layout, Linear, PackedTensor, TensorSpec, aligned_bytes

FLOAT = "bf16"
"""Format of all tensors that are not quantized."""

LENGTH = 256  # tokens of one text
LEAST, MOST = 512, 4096  # tokens in all
WORK = 1 << 39  # limit of products of weights with tokens, unless ``LEAST`` tokens need more
ROWS = 32  # rows of logits in binary64 at a time

Values = dict[str, NDArray[np.float32]]  # the values of one step that a later stage reads
Stream = list[Values]  # all steps of one model


def tokens_for(layout: Layout, formats: int) -> int:
    """Return the number of tokens to read, which depends on sizes alone."""
    inner = [spec for spec in layout.tensors if is_inner(spec.name)]
    streams = max(1, len(inner) * formats // 2)  # a stream begins in the middle of the model on average
    return min(MOST, max(LEAST, WORK // (sum(map(weights_of, layout.tensors)) * streams)))


def portion(texts: Sequence[NDArray[np.int32]], tokens: int) -> list[NDArray[np.int32]]:
    """Return the first ``tokens`` tokens in texts of ``LENGTH`` at most."""
    found: list[NDArray[np.int32]] = []
    for text in texts:
        for begin in range(0, len(text), LENGTH):
            if tokens <= 0:
                return found
            found.append(text[begin : begin + min(LENGTH, tokens)])
            tokens -= len(found[-1])
    return found


def sensitivities(
    forward: Forward,
    checkpoint: Checkpoint,
    formats: Sequence[str],
    lookup: FormatLookup,
    threads: int,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, dict[str, float]]:
    """Return the mean KL per token in nats, by tensor of the layers and by format, rounded to three digits.

    ``forward`` is new. ``progress`` is called with the bytes of each tensor that was read.
    """
    layout = checkpoint.layout
    specs = {spec.name: spec for spec in layout.tensors}
    for vector in layout.vectors:
        forward.vectors[vector.name] = gather_vector(vector, checkpoint)

    def pack(spec: TensorSpec, format: str) -> PackedTensor:
        quant = fitting(spec.name, spec.k, lookup(format))
        out = aligned_bytes(spec.panels * quant.panel_bytes(spec.k))
        pack_tensor(spec, checkpoint, quant, out, threads)
        sizes = spec.n, spec.k, spec.panels, quant.panel_bytes(spec.k)
        return PackedTensor(spec.name, quant.name, *sizes, out, 0, quant)

    clean: Stream = [{} for _ in forward.steps]
    others: dict[tuple[str, str], Stream] = {}
    found: dict[str, dict[str, float]] = {}
    for stage, wanted in forward.course():
        if not stage.gives and not forward.is_last(stage):
            continue  # the stage that reads its rows of experts computes them again
        weights = [name for op in stage.all_ops if (name := getattr(op, "weight", None)) in specs]
        tensors = {name: pack(specs[name], FLOAT) for name in dict.fromkeys(weights)}
        if forward.is_last(stage):
            last = forward.runner(replace(stage, gives=(forward.logits,)), tensors)
            for (name, format), loss in _divergences(forward, last, clean, others).items():
                found.setdefault(name, {})[format] = float(f"{loss:.3g}")
            break
        fresh = _fresh(forward, stage, wanted, tensors, clean, formats, lambda name, format: pack(specs[name], format))
        run = forward.runner(stage, tensors)
        for stream in (clean, *others.values()):
            _advance(forward, run, wanted, stream)
        others |= fresh
        progress(sum(tensor.nbytes for tensor in tensors.values()))
    return found


def _fresh(
    forward: Forward,
    stage: Stage,
    wanted: set[str],
    tensors: Mapping[str, PackedTensor],
    clean: Stream,
    formats: Sequence[str],
    pack: Callable[[str, str], PackedTensor],
) -> dict[tuple[str, str], Stream]:
    """Return the streams that begin at the stage: one for each linear op and format of its weight."""
    linears = [op.weight for op in stage.all_ops if isinstance(op, Linear | ExpertLinear) and is_inner(op.weight)]
    found = {}
    for weight in linears:
        for format in formats:
            stream = [dict(values) for values in clean]
            _advance(forward, forward.runner(stage, {**tensors, weight: pack(weight, format)}), wanted, stream)
            found[weight, format] = stream
    return found


def _advance(forward: Forward, run: Runner, wanted: set[str], stream: Stream) -> None:
    """Run every step of a stream through a stage, and drop the values that no later stage reads."""
    for index, texts in enumerate(forward.steps):
        made = {name: forward.store.keep(rows) for name, rows in run(stream[index], texts).items()}
        stream[index] = {name: rows for name, rows in {**stream[index], **made}.items() if name in wanted}


def _divergences(
    forward: Forward, run: Runner, clean: Stream, others: Mapping[tuple[str, str], Stream]
) -> dict[tuple[str, str], float]:
    """Return the mean KL per token of each stream; two copies of one step's logits are in memory."""
    vocab, total = forward.model.vocab, sum(len(ids) for ids in forward.texts)
    sums = dict.fromkeys(others, 0.0)
    for index, texts in enumerate(forward.steps):
        reference = run(clean[index], texts)[forward.logits][:, :vocab].copy()
        for key, stream in others.items():
            sums[key] += divergence(reference, run(stream[index], texts)[forward.logits][:, :vocab])
    return {key: value / total for key, value in sums.items()}


def divergence(p: NDArray[np.float32], q: NDArray[np.float32]) -> float:
    """Return KL(p || q) in nats, summed over the rows of two arrays of logits, (rows, vocab)."""
    total = 0.0
    for begin in range(0, len(p), ROWS):
        a, b = (_log_softmax(x[begin : begin + ROWS].astype(np.float64)) for x in (p, q))
        total += float((np.exp(a) * (a - b)).sum())
    return max(total, 0.0)


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
