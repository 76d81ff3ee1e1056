"""The calibrator ``text``: reads or generates text, and derives statistics and the losses of formats from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from infeng_convert.api import CalibrationSample, Checkpoint, Losses, reader_of
from numpy.typing import NDArray

from infeng_calibrate import texts
from infeng_calibrate.forward import ROWS, Forward
from infeng_calibrate.sensitivity import LENGTH, portion, sensitivities, tokens_for
from infeng_calibrate.statistics import Statistics
from infeng_core.api import TOKENIZERS, Engine, EngineConfig, Plugins, Request, SamplingParams
from infeng_core.api.formats import ModelConfig, format_lookup
from infeng_core.api.kernels import Selector


@dataclass(frozen=True)
class TextCalibrator:
    """Calibrates on a text file, or on text that the model generates."""

    config: EngineConfig
    plugins: Plugins

    def sample(self, text: str, source: Path) -> CalibrationSample:
        """Return token ids of the file ``text``; for "auto", of text that the model ``source`` generates.

        Raises UsageError for a file that is no text, and the errors of reading and running the model.
        """
        if text == "auto":
            return CalibrationSample("auto", _written(source, self.config))
        return CalibrationSample("file", _read(Path(text), source, self.config, self.plugins))

    def statistics(self, sample: CalibrationSample, *, aims: bool) -> Statistics:
        """Return the statistics of each matrix's inputs for a quantizer; aims: with the drift of these inputs."""
        start = partial(forward, sample.ids, self.config, self.plugins)
        return Statistics(start, self._threads, aims)

    def losses(
        self,
        sample: CalibrationSample,
        checkpoint: Checkpoint,
        formats: Sequence[str],
        progress: Callable[[int], object],
    ) -> Losses:
        """Return the loss of each tensor of the layers in each of ``formats`` alone, measured on part of the sample."""
        ids = portion(sample.ids, tokens_for(checkpoint.layout, len(formats)))
        course = forward(ids, self.config, self.plugins, checkpoint.config, most=LENGTH)
        return sensitivities(course, checkpoint, formats, format_lookup(self.plugins), self._threads, progress)

    @property
    def _threads(self) -> int:
        return self.plugins.cpu.place(self.config.threads, 0).workers


def forward(
    ids: Sequence[NDArray[np.int32]], config: EngineConfig, plugins: Plugins, model: ModelConfig, *, most: int = ROWS
) -> Forward:
    """Return a forward pass of the texts through a model of this shape, ``most`` tokens at a time."""
    return Forward(model, ids, config, Selector(plugins, config, plugins.cpu), most)


def _read(path: Path, source: Path, config: EngineConfig, plugins: Plugins) -> list[NDArray[np.int32]]:
    tokenizer = plugins.get(TOKENIZERS, config.tokenizer.use)(source, config)
    shape = reader_of(source, plugins).open(source).config
    return texts.read(path, tokenizer.encode, context=shape.max_positions, bos=shape.bos_id)


def _written(source: Path, config: EngineConfig) -> list[NDArray[np.int32]]:
    """Return texts sampled from the model at temperature 1, each after its BOS token or else another first token."""
    over = {"model.format": "int8-row", "model.quantizer": "nearest", "threads.count": config.threads.count}
    over |= {"tokenizer.use": "ids"}  # only token ids are needed
    over |= {"model.load": "mmap"}  # a conversion reads one tensor at a time, and a model may be large
    with Engine(source, overrides=over) as engine:
        shape = engine.model.config
        length = min(texts.LENGTH, engine.limits.context)
        count = texts.WRITTEN // length
        firsts = [shape.bos_id] * count if shape.bos_id is not None else [index % shape.vocab for index in range(count)]
        drawn = [
            SamplingParams(temperature=1.0, seed=seed, max_tokens=length - 1, ignore_eos=True) for seed in range(count)
        ]
        made = engine.generate([Request((first,), params) for first, params in zip(firsts, drawn, strict=True)])
    return [np.array([first, *one.token_ids], np.int32) for first, one in zip(firsts, made, strict=True)]
