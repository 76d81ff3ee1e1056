"""What a night measures: verbs of `infeng bench` and `infeng quality`, and the figures taken from their results."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_nightly.figures import Kind

RATE = "tokens/s"
QUALITY = "quality"
"""The verb of ``infeng quality REF CANDIDATE``; all others are of ``infeng bench``."""


@dataclass(frozen=True)
class Measurement:
    """A verb with its words, and the figures of its result by their dotted names."""

    verb: str
    words: tuple[str, ...]
    kinds: tuple[tuple[str, Kind], ...]
    has_peers: bool = False
    """Whether other engines can be measured in turn (``--engines``)."""
    repeats: bool = True
    """Whether it is measured in every round: False for a result that has its own interval and no noise."""

    @property
    def what(self) -> str:
        """The verb and its words."""
        return " ".join((self.verb, *self.words))


def measurements(*, quick: bool) -> list[Measurement]:
    """Return what is measured. quick: sizes for the demo model that take seconds."""
    decode, prefill = ("128", "256") if quick else ("512", "1024")
    requests, lengths, new = ("12", "32:96", "8:32") if quick else ("48", "64:512", "16:128")
    once = ("--pairs", "1", "--roofline", "none")
    steps = "64" if quick else "32"
    swap = (("adapter_swap_ms", Kind("load of an adapter", "ms", "lower", least=0.1, spread=0.04)),)
    return [
        Measurement(
            "decode",
            ("--rows", "1,4", "--context", decode, "--steps", steps, *once),
            (("tokens_per_s.median", Kind("decoding", RATE, "higher")),),
            has_peers=True,
        ),
        Measurement(
            "prefill",
            ("--rows", "1", "--context", prefill, *once),
            (
                ("tokens_per_s.median", Kind("prefill", RATE, "higher")),
                ("median_ttft_ms", Kind("time to first token", "ms", "lower")),
            ),
            has_peers=True,
        ),
        Measurement(
            "throughput",
            ("--requests", requests, "--input-len", lengths, "--output-len", new, "--temperature", "0"),
            (
                ("output_throughput", Kind("many requests", RATE, "higher")),
                ("median_ttft_ms", Kind("time to first token, many requests", "ms", "lower")),
            ),
        ),
        Measurement(
            "lora-tax",
            ("--rows", "4", "--adapters", "4", "--rank", "8" if quick else "16", "--context", decode, "--pairs", "5"),
            (("lora_tax", Kind("cost of adapters", "%", "lower", "share", least=0.03)),),
        ),
        Measurement(
            "zipf",
            ("--adapters", "8", "--rank", "8", "--num-requests", requests, "--max-new-tokens", "16",
             "--prompts", "random:32" if quick else "random:128", "--pairs", "1", "--warmup", "1"),
            (
                ("output_throughput", Kind("many adapters", RATE, "higher")),
                ("median_ttft_ms", Kind("time to first token, many adapters", "ms", "lower")),
            ),
        ),
        Measurement("swap", ("--rows", "4", "--rank", "8" if quick else "16", "--pairs", "6"), swap),
        Measurement(
            QUALITY,
            ("--context", "64", "--resamples", "1000"),
            (
                ("kl.mean", Kind("divergence from f32", "nats", "lower", least=0.05, spread=0.01)),
                ("ppl_ratio.value", Kind("perplexity over f32's", "times", "lower", least=0.003, spread=0.0003)),
            ),
            repeats=False,
        ),
    ]  # fmt: skip


INTERVALS = {"kl.mean": "kl_interval", "ppl_ratio.value": "ppl_ratio"}
"""Figures with an interval of their own in a result -> where its ``low`` and ``high`` are."""
