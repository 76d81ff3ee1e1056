"""Options of every command that generates text: how the model is run, and how tokens are chosen."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from infeng_core.scheduling.drafts import parse
from infeng_core.settings.config import WEIGHT_FORMATS

if TYPE_CHECKING:
    from infeng_core.requests.request import SamplingParams

_SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``, ``--format`` and ``--speculate``."""
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
    parser.add_argument("--format", metavar="F", help=f"weight format: {', '.join(WEIGHT_FORMATS)} or a plugin's")
    parser.add_argument(
        "--speculate", metavar="ngram[:K]", help="guess up to K tokens ahead from the text itself (off; K is 4)"
    )


def model_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what these options and ``model`` say, as ``config_from`` takes it."""
    return {
        **{key.replace(".", "__"): value for key, value in parse(arguments.speculate).items()},
        "model__path": arguments.model,
        "model__format": arguments.format,
        "threads__count": arguments.threads,
    }


def add_sampling_options(parser: argparse.ArgumentParser, most_tokens: int = 256) -> None:
    """Add the options that make SamplingParams; ``most_tokens`` is what the help says of ``--max-tokens``."""
    group = parser.add_argument_group("sampling")
    group.add_argument("-n", "--max-tokens", type=int, metavar="N", help=f"most new tokens ({most_tokens})")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (1)")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K most likely tokens; 0 keeps all (0)")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the fewest tokens that reach P (1)")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest (0)")
    group.add_argument("--seed", type=int, metavar="S", help="seed of the random numbers (default: drawn)")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; repeats")
    group.add_argument("--ignore-eos", action="store_true", help="go on past end-of-text tokens")


def sampling_params(arguments: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return what the options say; those not given are as in ``defaults``, or else as the library has them."""
    from infeng_core.requests.request import SamplingParams

    given = {name: getattr(arguments, name) for name in _SAMPLING if getattr(arguments, name) is not None}
    return SamplingParams(**{**defaults, **given}, stop=tuple(arguments.stop or ()), ignore_eos=arguments.ignore_eos)
