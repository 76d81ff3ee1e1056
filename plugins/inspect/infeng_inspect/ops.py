"""The ops of cases: the operands that each declares, and the op that each call adds to a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.kernels import Kernel, KvCache, Pool, Program, a_form, native, problems, shrink_needs
from infeng_inspect.judges import Judges
from infeng_inspect.lora import Lora
from infeng_inspect.operands import Operands
from infeng_inspect.steps import BLOCK, Steps, asked, up

Emit = Callable[[int], None]
"""Adds call number i of an op."""


class Ops:
    """The op of one case: a method for the ops over rows, and one for each other."""

    _weight: Callable[[int], native.Weight]  # of a call
    _kv: KvCache

    def __init__(
        self,
        case: problems.Fields,
        program: Program,
        pool: Pool,
        steps: Steps,
        operands: Operands,
        judges: Judges,
        lora: Lora | None,
        *,
        device: native.Device | None,
        copies: int,
        is_timed: bool,
        like: Ops | None,
    ) -> None:
        """Add to ``program``; copies: of the weight, or layers of the cache, which ``like`` shares if given.

        is_timed: the op is measured and not checked.
        """
        self._case, self._program, self._pool, self._steps = case, program, pool, steps
        self._operands, self._judges, self._lora = operands, judges, lora
        self._device, self._copies, self._is_timed, self._like = device, copies, is_timed, like
        self._needs = frozenset(asked(case)["needs"])
        self.vocabulary = 1
        """Of an embedding."""

    def declare(self, kernel: Kernel | None) -> Emit:
        """Declare the operands of the op; return the function that adds a call of it by ``kernel`` (None: the
        reference's)."""
        self._bound = self._judges.of_case(self._case) if kernel is None else self._judges.bound(kernel)
        op = self._case["op"]
        build: Callable[[], Emit] = self._row_op if op in native.row_ops() else getattr(self, f"_{op}")
        return build()

    def _row_op(self) -> Emit:
        op, n, declared = self._case["op"], self._case["n"], self._operands
        operands: dict[str, Any] = {}
        for name, kind, value in native.row_ops()[op]:
            if kind == "rows":
                operands[name] = declared.rows(n, like_output=True) if operands else declared.input("f32", n)
            elif kind != "row_index":
                operands[name] = declared.vector(n) if kind == "vector" else value
        steps, columns = self._epilogues(n)
        out = declared.output(columns)
        more: dict[str, Any] = {"operands": operands, "gather_samples": self._steps.is_gathered}
        alone = None if self._fuses_all() else self._program.buffer(n, samples=self._steps.is_gathered)

        def emit(call: int) -> None:
            first = [] if self._lora is None else [self._expand(call, n, n)]
            if alone is None:
                self._program.row_op(op, self._bound, n, out, [*first, *steps], **more)
                return
            self._program.row_op(op, self._bound, n, alone, **more)
            after = self._judges.of("epilogue", n=n, k=n, epilogues=self._case["epilogues"])
            self._program.epilogue(after, alone, n, out, [*first, *steps])

        return emit

    def _fuses_all(self) -> bool:
        """Return whether the kernel takes all steps of the case; the judge of a library's op may not."""
        [(_, kernel)] = self._bound
        return set(problems.step_names(self._case)) <= set(kernel.fuses)

    def _embed(self) -> Emit:
        weight, out = self._weights(), self._operands.output(self._case["k"])
        return lambda call: self._program.embed(self._bound, weight(call), out)

    def _rmsnorm(self) -> Emit:
        k, heads = self._case["k"], 3 if "norm_heads" in self._needs else 1
        width = heads * up(k) if heads > 1 else k
        x = self._operands.input("f32", width)
        vector = None if "norm_plain" in self._needs else self._operands.vector(k, "its weight")
        steps, columns = self._epilogues(width)
        out = self._operands.output(columns)
        more = {"gather_samples": self._steps.is_gathered, "heads": heads, "size": k}
        offset = 1.0 if "norm_offset" in self._needs else 0.0
        return lambda call: self._program.rmsnorm(self._bound, x, vector, 1e-5, out, steps, offset=offset, **more)

    def _linear(self) -> Emit:
        n, k = self._case["n"], self._case["k"]
        x, weight = self._operands.input(self._case["act"], k), self._weights()
        steps, columns = self._epilogues(n)
        out = self._operands.output(columns)

        def emit(call: int) -> None:
            if self._lora is None:
                self._program.linear(self._bound, weight(call), x, out, steps)
                return
            first = self._expand(call, n, k)
            if "lora" in self._case.get("epilogues", ()):
                self._program.linear(self._bound, weight(call), x, out, [first, *steps])
                return
            self._program.linear(self._bound, weight(call), x, out, steps)
            self._program.epilogue(self._judges.of("epilogue", n=n, k=n, epilogues=["lora"]), out, n, out, [first])

        return emit

    def _shrink(self) -> Emit:
        assert self._lora is not None
        k, panels = self._case["k"], 1 if self._lora.adapters.count else 4
        x, zero = self._operands.input(self._case["act"], k), self._operands.buffer(panels * BLOCK)
        out = self._operands.output(panels * BLOCK)
        u = self._program.view(0)  # the first buffer of programs with adapters
        self._operands.hold(u, 0)
        self._operands.result("u", u, by_row=True)
        expand = self._judges.of("epilogue", n=panels * BLOCK, k=panels * BLOCK, epilogues=["lora"])

        def emit(call: int) -> None:
            assert self._lora is not None
            step = self._lora.shrink(self._bound, call, x, k, panels)
            self._program.epilogue(expand, zero, panels * BLOCK, out, [step])

        return emit

    def _rope(self) -> Emit:
        sizes = {name: self._case[name] for name in ("heads", "kv_heads", "head_dim")}
        heads, kv_heads, size = sizes.values()
        k_column, rot = up(heads * size), self._case.get("rot", size)
        columns, context = k_column + kv_heads * size, self._steps.context
        x = self._operands.input("f32", columns, is_output=True)
        cos, sin = (self._operands.table((context, rot // 2)) for _ in range(2))
        cos /= (length := np.hypot(cos, sin))  # rotations keep the magnitude of values in every call
        sin /= length
        norms = [self._operands.vector(size) if "rope_norm" in self._needs else None for _ in range(2)]
        scale = self._operands.vector(context) if "rope_scale" in self._needs else None
        more: dict[str, Any] = {"q_norm": norms[0], "k_norm": norms[1], "q_scale": scale, "eps": 1e-5}
        return lambda call: self._program.rope(self._bound, x, **sizes, k_column=k_column, cos=cos, sin=sin, **more)

    def _kv_append(self) -> Emit:
        width = self._kv_columns()
        kv, x = self._cache(), self._operands.input("f32", 2 * width)
        for layer in range(self._copies):
            view = self._layer(kv, layer)
            self._operands.hold(view, 0)
            self._operands.result("cache", view, by_row=False)
        columns = {"k_column": 0, "v_column": width}
        return lambda call: self._program.kv_append(self._bound, x, kv, call % self._copies, **columns)

    def _attention(self) -> Emit:
        heads, size = self._case["heads"], self._case["head_dim"]
        kv = self._cache() if self._like is None else self._like._kv
        x = self._operands.input("f32", heads * size)
        if self._like is None:
            self._append(kv)
        self._kv = kv
        for layer in range(self._copies):
            self._operands.watch("the cache", self._layer(kv, layer))
        steps, columns = self._epilogues(heads * self._case.get("v_head_dim", size))
        out = self._operands.output(columns)
        more: dict[str, Any] = {"window": self._steps.window, "scale": float(np.float32(1.0 / np.sqrt(size)))}
        more["softcap"] = 1.5 if "softcap" in self._needs else 0.0
        more["mask"] = "full" if "mask" in self._needs else "causal"
        more["sinks"] = self._operands.normal(heads) if "sinks" in self._needs else None
        more["slopes"] = self._operands.vector(heads) / np.float32(64) if "alibi" in self._needs else None
        return lambda call: self._program.attention(
            self._bound, x, kv, call % self._copies, out, heads=heads, epilogues=steps, **more
        )

    def _route(self) -> Emit:
        n, k, top_k, act = (self._case[name] for name in ("experts", "k", "top_k", "act"))
        logits, x = self._operands.rows(n), self._operands.input(act, k)
        view = self._program.view(logits)
        self._operands.hold(view, np.round(self._operands.normal(*view.shape) * 4) / 4)  # with equal ones
        # Both kinds of weights, each with its own buffer, unless the op is timed.
        kinds = (False, True)[: 1 if self._is_timed else 2]
        made = [(chosen, *self._operands.copies(act, n, k, top_k)) for chosen in kinds]

        def emit(call: int) -> None:
            for chosen, routing, out in made:
                more = {"routing": routing, "columns": k, "share_of_chosen": chosen}
                self._program.route(self._bound, logits, x, out, **more)

        return emit

    def _combine(self) -> Emit:
        n, top_k, operands = self._case["n"], self._case["top_k"], self._operands
        routing, x = self._program.routing(experts=top_k, top_k=top_k), operands.rows(n, copies=top_k)
        _, weights, places, _ = self._program.view_routing(routing)
        operands.hold(weights, operands.normal(*weights.shape))
        operands.hold(places, operands.shuffled(places.shape))
        steps, columns = self._epilogues(n)
        out = operands.output(columns)
        shared, gate = operands.rows(n), operands.rows(1)

        def emit(call: int) -> None:
            self._program.combine(self._bound, x, n, out, steps, routing=routing, shared=shared, gate=gate)

        return emit

    # Shared by several ops.

    def _epilogues(self, columns: int) -> tuple[list[native.Epilogue], int]:
        names: Sequence[Any] = self._case.get("epilogues", ())
        return self._operands.epilogues(names, columns)

    def _expand(self, call: int, columns: int, k: int) -> native.Epilogue:
        """Return the step that adds adapters' products, with the shrink before it."""
        assert self._lora is not None
        if self._lora.adapters.is_looked_up:
            return self._lora.lookup(columns // BLOCK)
        storage = self._lora.adapters.storage
        weight, act = a_form(storage)
        more = {"needs": needs} if (needs := shrink_needs(storage)) else {}
        shrink = self._judges.of("shrink", weight=weight, act=act, n=self._lora.columns, k=k, **more)
        return self._lora.shrink(shrink, call, self._operands.input(act, k), k, columns // BLOCK)

    def _weights(self) -> Callable[[int], native.Weight]:
        """Return the function that gives the weight of a call."""
        if self._like is None:
            format, n, k = (self._case[name] for name in ("weight", "n", "k"))
            self._weight = self._operands.weights(format, n, k, self._copies)
        else:
            self._weight = self._like._weight
        self.vocabulary = self._weight(0).n
        return self._weight

    def _cache(self) -> KvCache:
        sizes = {name: self._case[name] for name in ("kv_heads", "head_dim", "v_head_dim") if name in self._case}
        more: dict[str, Any] = {"layers": self._copies, "blocks": sum(self._steps.blocks), "device": self._device}
        return KvCache(self._case["kv"], **more, **sizes)

    def _layer(self, kv: KvCache, layer: int) -> NDArray[np.uint8]:
        """Return a layer as (blocks, kv heads, bytes): a view, or of a device a copy that is kept up to date."""
        if self._device is None:
            return kv.layer(layer)
        blocks = np.arange(sum(self._steps.blocks), dtype=np.int32)
        shape = len(blocks), self._copies, self._case["kv_heads"], -1

        def layers() -> NDArray[np.uint8]:
            return self._program.read_blocks(kv, blocks).reshape(shape)

        def read() -> None:
            copy[:] = layers()[:, layer]

        def write() -> None:
            whole = layers()
            whole[:, layer] = copy
            self._program.write_blocks(kv, blocks, whole.reshape(len(blocks), -1))

        copy = np.zeros_like(layers()[:, layer])

        read()
        self._operands.copied(read, write)
        return copy

    def _kv_columns(self) -> int:
        size = self._case["head_dim"]
        return up(self._case["kv_heads"] * max(size, self._case.get("v_head_dim", size)))

    def _append(self, kv: KvCache) -> None:
        """Fill the cache with keys and values of all earlier positions."""
        names = ("kv", "kv_heads", "head_dim", "v_head_dim")
        fields = {name: self._case[name] for name in names if name in self._case}
        if "head_sizes" in self._needs:
            fields["needs"] = ["head_sizes"]
        rows, context = min(max(self._steps.lengths), 512), self._steps.context
        width = self._kv_columns()
        most: dict[str, Any] = {"max_rows": rows, "max_samples": 1, "max_segments": 1, "context": context}
        program = Program(self._pool, **most, device=self._device)
        kernel = self._judges.of("kv_append", context=context, **fields)[0][1]
        x = program.buffer(2 * width)
        for layer in range(self._copies):
            program.kv_append([(rows, kernel)], x, kv, layer, k_column=0, v_column=width)
        program.finish()
        for index, length in enumerate(self._steps.lengths):
            for begin in range(0, length, rows):
                program.view(x)[:] = self._operands.normal(rows, 2 * width)
                step = [(0, 0)] * index + [(min(rows, length - begin), begin)]
                program.run(*self._steps.batch(step, is_op=False))
