"""From what was asked for to what a conversion is given: text, the statistics of it, and a record of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.calibration import texts
from infeng_core.calibration.forward import ROWS, Forward
from infeng_core.calibration.statistics import Statistics
from infeng_core.engine import Engine
from infeng_core.formats.providers import reader_of
from infeng_core.formats.quantizers import QuantizerChoice
from infeng_core.formats.recipes import Text
from infeng_core.kernels.choice import Selector
from infeng_core.models.config import ModelConfig
from infeng_core.plug.manager import Plugins
from infeng_core.requests.request import Request, SamplingParams
from infeng_core.settings.config import EngineConfig


@dataclass(frozen=True)
class Sample:
    """Calibration text as token ids, and where it comes from: ``auto`` or ``file``."""

    source: str
    ids: list[NDArray[np.int32]]

    @property
    def text(self) -> Text:
        """What identifies it."""
        return Text(self.source, sum(map(len, self.ids)), texts.digest(self.ids))


def sample(text: str | None, source: Path, config: EngineConfig, plugins: Plugins) -> Sample | None:
    """Return calibration text for the model ``source``; None for no calibration.

    text: a file, "auto" for what the model writes itself, "none" or None. Raises UsageError for a file that is no text,
    and what reading and running the model raise.
    """
    if text in (None, "none"):
        return None
    if text == "auto":
        return Sample("auto", _written(source, config))
    return Sample("file", _read(Path(str(text)), source, config, plugins))


def calibrated(
    quantizer: QuantizerChoice, given: Sample | None, config: EngineConfig, plugins: Plugins
) -> tuple[QuantizerChoice, Statistics | None]:
    """Return a quantizer whose record names the calibration text, and the statistics that it is to be told."""
    if given is None:
        return quantizer, None
    settings = {**quantizer.settings, "text": given.text.sha256, "tokens": given.text.tokens}
    if rules := getattr(quantizer.quantizer, "rules", None):
        settings["rules"] = rules
    threads = plugins.cpu.place(config.threads, 0).workers
    start = partial(forward, given.ids, config, plugins)
    aims = bool(getattr(quantizer.quantizer, "aims", False))
    return replace(quantizer, settings=settings), Statistics(start, threads, aims)


def forward(
    ids: Sequence[NDArray[np.int32]], config: EngineConfig, plugins: Plugins, model: ModelConfig, *, most: int = ROWS
) -> Forward:
    """Return the way of text through a model of this shape, ``most`` tokens at a time."""
    return Forward(model, ids, config, Selector(plugins, config, plugins.cpu), most)


def _read(path: Path, source: Path, config: EngineConfig, plugins: Plugins) -> list[NDArray[np.int32]]:
    tokenizer = plugins.tokenizer(config.tokenizer.use)(source, config)
    shape = reader_of(source, plugins).open(source).config
    return texts.read(path, tokenizer.encode, context=shape.max_positions, bos=shape.bos_id)


def _written(source: Path, config: EngineConfig) -> list[NDArray[np.int32]]:
    """Return texts that the model draws at temperature 1, each from the beginning of text or from a first token."""
    over = {"model.format": "int8-row", "model.quantizer": "nearest", "threads.count": config.threads.count}
    over |= {"tokenizer.use": "ids"}  # what it writes is tokens
    over |= {"model.load": "mmap"}  # what a conversion needs at a time is little, and a model may be large
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
