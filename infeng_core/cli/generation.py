"""Options of every command that generates text: how the model is run, and how tokens are chosen."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from infeng_core.requests.parameters import SAMPLING, Kind
from infeng_core.scheduling.drafts import parse
from infeng_core.settings.config import WEIGHT_FORMATS

if TYPE_CHECKING:
    from infeng_core.requests.request import SamplingParams
    from infeng_core.requests.tokenizer import Tokenizer


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``, ``--format``, ``--context`` and ``--speculate``."""
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
    parser.add_argument("--format", metavar="F", help=f"weight format: {', '.join(WEIGHT_FORMATS)} or a plugin's")
    parser.add_argument("--context", type=int, metavar="N", help="most tokens of a prompt and its answer (the model's)")
    parser.add_argument("-c", "--ctx-size", dest="context", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--speculate", metavar="ngram[:K]", help="guess up to K tokens ahead from the text itself (off; K is 4)"
    )


def model_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what these options and ``model`` say, as ``config_from`` takes it."""
    return {
        **{key.replace(".", "__"): value for key, value in parse(arguments.speculate).items()},
        "model__path": arguments.model,
        "model__format": arguments.format,
        "model__context": arguments.context,
        "threads__count": arguments.threads,
    }


def add_sampling_options(parser: argparse.ArgumentParser, most_tokens: int | None = 256) -> None:
    """Add an option for each sampling parameter.

    most_tokens: what the help says of ``--max-tokens``; None where the defaults are a server's.
    """
    group = parser.add_argument_group("sampling" if most_tokens is not None else "sampling (default: the server's)")
    for name, row in SAMPLING.items():
        words, how = [f"--{name.replace('_', '-')}"], dict(_HOW[row.kind])
        text = row.help
        if name == "max_tokens":
            words, text = ["-n", *words], text if most_tokens is None else f"{text} ({most_tokens})"
        repeats = "; repeats" if row.kind in ("texts", "biases") else ""
        group.add_argument(*words, help=f"{text}{repeats}", **how)
        if name == "max_tokens":  # the words of other engines
            group.add_argument("--max-new-tokens", "--n-predict", dest=name, help=argparse.SUPPRESS, **how)


def sampling_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters that options give, by their names and as a server takes them."""
    values = {name: getattr(arguments, name) for name in SAMPLING}
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return {**given, **({"logit_bias": dict(given["logit_bias"])} if "logit_bias" in given else {})}


def sampling_params(arguments: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return what the options say; those not given are as in ``defaults``, or else as the library has them.

    Words that the answer shall not have are left to ``without_words``: they need the model's tokenizer.
    """
    from infeng_core.requests.request import SamplingParams

    given = {name: value for name, value in sampling_fields(arguments).items() if name != "bad_words"}
    return SamplingParams(**{**defaults, **given})


def without_words(arguments: argparse.Namespace, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Return ``params`` with the words of ``--bad-words``; raises RequestError."""
    if not arguments.bad_words:
        return params
    from infeng_core.requests.words import bad_words

    return replace(params, bad_words_ids=bad_words(arguments.bad_words, tokenizer))


def _ids(text: str) -> list[int]:
    """Return token ids, which spaces or commas part."""
    return [int(word) for word in text.replace(",", " ").split()]


def _bias(text: str) -> tuple[int, float]:
    id_, _, bias = text.partition("=")
    return int(id_), float(bias)


_ids.__name__, _bias.__name__ = "token ids", "ID=BIAS"  # as argparse calls what it could not read

_HOW: dict[Kind, dict[str, Any]] = {
    "number": {"type": float, "metavar": "X"},
    "integer": {"type": int, "metavar": "N"},
    "flag": {"action": "store_true"},
    "texts": {"action": "append", "metavar": "TEXT"},
    "tokens": {"type": _ids, "action": "extend", "metavar": "IDS"},
    "biases": {"type": _bias, "action": "append", "metavar": "ID=BIAS"},
}
"""How options of each kind are read."""
