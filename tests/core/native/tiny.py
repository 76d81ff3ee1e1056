"""One transformer layer as a Program, and the same layer in plain NumPy."""

import numpy as np

from infeng_core import _native
from infeng_core.formats.packing import packer

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT, EPS = 64, 4, 2, 16, 40, 96, 1e-5
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LINEARS = {"embed": VOCAB, "qkv": QKV, "o": HIDDEN, "gate_up": 4 * HIDDEN, "down": HIDDEN, "head": VOCAB}


def make_weights(seed=0):
    """Return {name: (outputs, inputs) float32}, and the two norms; gate_up's panels alternate gate, up."""
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(0, 0.2, (n, 2 * HIDDEN if name == "down" else HIDDEN)).astype(np.float32)
        for name, n in LINEARS.items()
    }
    for norm in ("norm1", "norm2"):
        weights[norm] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    return weights


def rope_tables():
    """Return (cos, sin), each (CONTEXT, HEAD_DIM / 2) float32."""
    angle = np.arange(CONTEXT)[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def numpy_logits(weights, tokens):
    """Return the logits (len(tokens), VOCAB) of one sequence in double precision."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    cos, sin = (table[: len(tokens)].astype(np.float64) for table in rope_tables())

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

    def rotate(x):  # (tokens, heads, head_dim)
        a, b = np.split(x, 2, axis=-1)
        c, s = cos[:, None], sin[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    x = w["embed"][tokens]
    qkv = (norm(x, w["norm1"]) @ w["qkv"].T).reshape(len(tokens), -1, HEAD_DIM)
    q, k, v = rotate(qkv[:, :HEADS]), rotate(qkv[:, HEADS : HEADS + KV_HEADS]), qkv[:, HEADS + KV_HEADS :]
    k, v = (np.repeat(t, HEADS // KV_HEADS, axis=1) for t in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
    scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    attended = np.einsum("hqk,khd->qhd", weight / weight.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
    x = x + attended @ w["o"].T
    both = (norm(x, w["norm2"]) @ w["gate_up"].T).reshape(len(tokens), -1, 2, 16)
    gate, up = both[:, :, 0].reshape(len(tokens), -1), both[:, :, 1].reshape(len(tokens), -1)
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"].T
    return norm(x, w["norm1"]) @ w["head"].T


class Tiny:
    """The layer on the native core; ``kernels`` by name, weights in ``form``, cache in ``kv``."""

    def __init__(
        self, pool, kernels, form="f32", kv="f32", *, rows=48, samples=48, segments=4, blocks=24, bindings=None
    ):
        quantized = form.startswith("int")
        name = form.replace("-", "")
        self.program = p = _native.Program(
            pool, max_rows=rows, max_samples=samples, max_segments=segments, context=CONTEXT
        )
        self.cache = _native.KvCache(kv, layers=1, blocks=blocks, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
        weights = make_weights()
        vectors = {norm: weights.pop(norm) for norm in ("norm1", "norm2")}
        packed = {key: self.pack("f32" if key == "embed" else form, value) for key, value in weights.items()}

        def bind(kernel):
            return [(rows, kernels[kernel])]

        def operand(columns, **where):  # what a linear of this format reads, and the step that writes it
            if quantized:
                value = p.activation(columns, **where)
                return value, None, [_native.Epilogue.quantize(value)]
            value = p.buffer(columns, **where)
            return value, value, []

        linear = f"linear_{name}"
        x, qkv, attended = p.buffer(HIDDEN), p.buffer(QKV), p.buffer(HIDDEN)
        self.logits = p.buffer(VOCAB, samples=True)
        p.embed(bind("embed_f32"), packed["embed"], x)
        y, out, tail = operand(HIDDEN)
        p.rmsnorm(bind("rmsnorm"), x, vectors["norm1"], EPS, out, tail)
        p.linear(bind(linear), packed["qkv"], y, qkv)
        cos, sin = rope_tables()
        k, v = HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM
        p.rope(bind("rope"), qkv, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, k_column=k, cos=cos, sin=sin)
        p.kv_append(bind(f"kv_append_{kv}"), qkv, self.cache, 0, k_column=k, v_column=v)
        p.attention(bind(f"attention_{kv}"), qkv, self.cache, 0, attended, heads=HEADS, scale=HEAD_DIM**-0.5)
        y, out, tail = operand(HIDDEN)
        if quantized:
            p.epilogue(bind("epilogue"), attended, HIDDEN, None, tail)
        p.linear(bind(linear), packed["o"], y if quantized else attended, x, [_native.Epilogue.residual(x)])
        y, out, tail = operand(HIDDEN)
        p.rmsnorm(bind("rmsnorm"), x, vectors["norm2"], EPS, out, tail)
        z, out, tail = operand(2 * HIDDEN)
        p.linear(bind(linear), packed["gate_up"], y, out, [_native.Epilogue.silu_mul(), *tail])
        p.linear(bind(linear), packed["down"], z, x, [_native.Epilogue.residual(x)])
        y, out, tail = operand(HIDDEN, samples=True)
        p.rmsnorm(bind("rmsnorm"), x, vectors["norm1"], EPS, out, tail, gather_samples=True)
        p.linear(bind(linear), packed["head"], y, self.logits)
        p.finish()

    @staticmethod
    def pack(form, weight):
        """Return the packed weight."""
        n, k = weight.shape
        panels, size = -(-n // 16), _native.panel_bytes(form, k)
        arena = _native.Arena(panels * size)
        packer().pack(form, weight, arena)
        return _native.Weight(form, n, k, panels, size, arena)

    def run(self, *chunks, samples=None):
        """Run chunks (tokens, pos0, block table); return the logits of all rows, or of those in ``samples``."""
        tokens, positions, segments, tables = [], [], [], []
        for ids, pos0, table in chunks:
            segments.append([len(tokens), len(tokens) + len(ids), pos0, len(tables)])
            tokens.extend(ids)
            positions.extend(range(pos0, pos0 + len(ids)))
            tables.extend(table)
        rows = np.arange(len(tokens)) if samples is None else np.array(samples)
        integers = [np.array(values, np.int32) for values in (tokens, positions, segments, tables, rows)]
        self.program.run(*integers)
        return self.program.view(self.logits)[: len(rows)].copy()
