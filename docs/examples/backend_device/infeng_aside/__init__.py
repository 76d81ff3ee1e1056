"""A backend with a device of its own: it gets the weights one at a time, draws tokens and runs steps asynchronously.

``backend: {use: aside}``. A thread that runs the native program takes the place of the device, so its tokens are those
of the backend ``native``.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import EngineConfig, SamplingParams, hookimpl
from infeng_core.api.engines import Batch, Draws, Executable, Limits, NativeBackend
from infeng_core.api.formats import LoadedModel, ModelConfig, PackedTensor
from infeng_core.api.kernels import Selector

from .sampling import draw, is_supported

Result = tuple[NDArray[np.float32], NDArray[np.int32]]
"""The logits of a step, (samples, vocab), and the tokens of its draws, (draws,)."""


class Aside:
    """Makes executables. The optional ``streams_weights`` asks for the weights one at a time."""

    uses_kernels = True
    streams_weights = True

    def __init__(self) -> None:
        """Compute with the native backend."""
        self._native = NativeBackend()

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of a block of the native cache."""
        return self._native.block_bytes(shape, config)

    def block_windows(self, shape: ModelConfig, config: EngineConfig) -> tuple[int, ...]:
        """Return the windows of the native cache's groups."""
        return self._native.block_windows(shape, config)

    def available_bytes(self) -> int | None:
        """Return the free memory of the machine, which is also the device's."""
        return self._native.available_bytes()

    def compile(self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector) -> Device:
        """Upload the weights and return the model, ready to run."""
        return Device(self._native.compile(uploaded(model), config, limits, selector))


def uploaded(model: LoadedModel) -> LoadedModel:
    """Return a model whose weights are in the device's memory; the host has few of them at a time."""
    tensors: dict[str, PackedTensor] = {}
    vectors: dict[str, NDArray[np.float32]] = {}
    for name, weight in model.weights():
        if isinstance(weight, PackedTensor):
            panels = np.frombuffer(weight.buffer, np.uint8, weight.nbytes, weight.offset)
            tensors[name] = weight.holding(on_device(panels), name)
        else:
            vectors[name] = on_device(weight.view(np.uint8)).view(np.float32)
    return replace(model, tensors=tensors, vectors=vectors, stream=None)


def on_device(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of bytes that begins at a multiple of 64."""
    room = np.empty(len(data) + 64, np.uint8)
    begin = -room.ctypes.data % 64
    memory: NDArray[np.uint8] = room[begin : begin + len(data)]
    memory[:] = data
    return memory


class Device:
    """An executable whose steps run on a thread. All that is not here is the native executable's."""

    def __init__(self, inner: Executable) -> None:
        """Start the thread."""
        self._inner = inner
        self._thread = ThreadPoolExecutor(1, "aside")
        self._tokens = np.empty(0, np.int32)

    def __getattr__(self, name: str) -> Any:
        """Return a member of the native executable."""
        return getattr(self._inner, name)

    def samples(self, params: SamplingParams) -> bool:
        """Return whether the device draws with these parameters."""
        return is_supported(params)

    def sampled(self) -> NDArray[np.int32]:
        """Return the tokens that the latest step drew."""
        return self._tokens

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a step and wait for it."""
        return self.finish(self.start(batch))

    def start(self, batch: Batch) -> Future[Result]:
        """Queue a step, also after one that was never finished; the thread reads copies of the arrays."""
        own = Batch(*(part.copy() if isinstance(part, np.ndarray) else part for part in batch))
        return self._thread.submit(self._compute, own)

    def finish(self, handle: Future[Result]) -> NDArray[np.float32]:
        """Wait for a step."""
        logits, self._tokens = handle.result()
        return logits

    def close(self) -> None:
        """End the thread and free the memory."""
        self._thread.shutdown()
        self._inner.close()

    def _compute(self, batch: Batch) -> Result:
        logits = self._inner.run(batch)
        if batch.draws is None:
            return logits, np.empty(0, np.int32)
        tokens = drawn(logits, batch.draws)
        fetched = logits.copy()
        fetched[batch.draws.samples] = np.nan  # a device sends the host none of these rows
        return fetched, tokens


def drawn(logits: NDArray[np.float32], draws: Draws) -> NDArray[np.int32]:
    """Return the token of each row that the device draws from."""
    found = [
        draw(logits[row], params.temperature, seed, position)
        for row, params, seed, position in zip(
            draws.samples.tolist(), draws.params, draws.seeds.tolist(), draws.positions.tolist(), strict=True
        )
    ]
    return np.array(found, np.int32)


@hookimpl
def infeng_backends() -> dict[str, Any]:
    """Return the backend."""
    return {"aside": Aside()}
