"""The requests of `infeng bench zipf`, the same in the same order for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from infeng_bench.load import prompts
from infeng_bench.load.arrivals import Arrival, Lengths
from infeng_bench.load.kinds import Load
from infeng_bench.load.requests import Job
from infeng_bench.load.traffic import choices, draw

from infeng_peers import prompt_texts


@dataclass(frozen=True)
class Workload:
    """The parameters from which the requests of each round are drawn."""

    requests: int
    new: int | None  # new tokens of each request; for a trace, an upper bound
    alpha: float
    include_base: bool
    seed: int
    rate: float  # requests per second of a Poisson process; infinite: all arrive at the beginning
    lengths: Lengths | None  # of random prompts; None: ``texts``
    texts: Sequence[list[int]] = field(default=(), repr=False)  # prompts as token ids
    trace: Sequence[Arrival] = field(default=(), repr=False)
    """Arrivals and lengths, instead of ``rate``, ``lengths`` and ``texts``."""

    def jobs(self, number: int, names: Sequence[str], vocab: int, context: int) -> list[Job]:
        """Return the requests of round ``number``.

        names: adapters, the most popular first. context: most positions of a request; longer prompts are truncated.
        """
        seed = self.seed + number
        first = number * self.requests
        texts = list(islice(prompt_texts.shuffled(self.texts, self.seed), first, first + self.requests))
        wanted = self._arrivals(seed, context, texts)
        every = [*names, None]
        chosen = choices(len(wanted), len(names), self.alpha, self.include_base, seed)
        found = []
        for index, (arrival, adapter) in enumerate(zip(wanted, chosen, strict=True)):
            text = texts[index] if texts else prompts.random_ids(arrival.prompt, seed, index, vocab)
            found.append(Job(arrival.at, text[: arrival.prompt], arrival.new, every[adapter]))
        return found

    def _arrivals(self, seed: int, context: int, texts: Sequence[list[int]]) -> list[Arrival]:
        if self.trace:
            return [replace(one, new=min(one.new, self.new or one.new)) for one in self.trace]
        assert self.new is not None
        new = min(self.new, context - 1)
        load = Load.parse(f"poisson:rate={self.rate},output={new},prompt={self.lengths or 1}")
        drawn = draw(load, self.requests, seed, context)
        sizes = [len(text) for text in texts] or drawn.prompt.tolist()
        return [Arrival(at, min(size, context - new), new) for at, size in zip(drawn.at.tolist(), sizes, strict=True)]
