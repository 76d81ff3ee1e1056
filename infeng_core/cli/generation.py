"""Options of every command that generates text: the model's settings, and sampling."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from infeng_core.requests.parameters import SAMPLING, Kind
from infeng_core.scheduling.drafts import parse
from infeng_core.settings.config import SCHEMA, WEIGHT_FORMATS, default_of

if TYPE_CHECKING:
    from infeng_core.requests.request import SamplingParams


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``, ``--format``, ``--context`` and ``--speculate``."""
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
    format = default_of(SCHEMA["model"]["format"])
    text = f"weight format: {', '.join(WEIGHT_FORMATS)} or a plugin's (default: {format})"
    parser.add_argument("--format", metavar="F", help=text)
    text = "most tokens of a prompt and its answer (default: the model's)"
    parser.add_argument("--context", type=int, metavar="N", help=text)
    parser.add_argument("-c", "--ctx-size", dest="context", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--speculate",
        metavar="DRAFTER[:K]",
        help="guess up to K tokens ahead: ngram from the text itself, suffix also from earlier answers (default: off)",
    )


def model_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of these options, ``model`` and ``--adapters-dir`` as arguments of ``config_from``."""
    return {
        **{key.replace(".", "__"): value for key, value in parse(arguments.speculate).items()},
        "model__path": arguments.model,
        "model__format": arguments.format,
        "model__context": arguments.context,
        "threads__count": arguments.threads,
        "adapters__directory": getattr(arguments, "adapters_dir", None),
    }


def add_sampling_options(
    parser: argparse.ArgumentParser, most_tokens: int | None = 256, advised: Collection[str] = ()
) -> None:
    """Add an option for each sampling parameter.

    most_tokens: the default of ``--max-tokens`` in the help; None if the defaults are a server's. advised: parameters
    whose defaults come from the model's generation_config.json, if it has them.
    """
    known = {} if most_tokens is None else _defaults(most_tokens)
    group = parser.add_argument_group("sampling" if most_tokens is not None else "sampling (default: the server's)")
    for name, row in SAMPLING.items():
        words, how = [f"--{name.replace('_', '-')}"], dict(_HOW[row.kind])
        text = row.help
        if name == "max_tokens":
            words = ["-n", *words]
        makers = "the model's, else " if name in advised else ""
        default = f" (default: {makers}{known[name]})" if name in known else ""
        repeats = "; repeats" if row.kind in ("texts", "biases") else ""
        group.add_argument(*words, help=f"{text}{repeats}{default}", **how)
        if name == "max_tokens":  # other engines' names
            group.add_argument("--max-new-tokens", "--n-predict", dest=name, help=argparse.SUPPRESS, **how)


def _defaults(most_tokens: int) -> dict[str, str]:
    """Return the printed defaults of sampling parameters that have one."""
    from infeng_core.requests.request import SamplingParams

    shown = {"seed": "a random one", "dry_sequence_breakers": "line break, colon, quotation mark, asterisk"}
    for field in fields(SamplingParams):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            shown[field.name] = f"{field.default:g}"
    return {**shown, "max_tokens": str(most_tokens)}


def sampling_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given sampling parameters by name, in the form for a server."""
    values = {name: getattr(arguments, name) for name in SAMPLING}
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return {**given, **({"logit_bias": dict(given["logit_bias"])} if "logit_bias" in given else {})}


def sampling_params(arguments: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return the given sampling parameters; others come from ``defaults``, or else from the library.

    ``drop_bad_words`` of infeng-processors adds bad words later, since they need the model's tokenizer.
    """
    from infeng_core.requests.request import SamplingParams

    given = {name: value for name, value in sampling_fields(arguments).items() if name != "bad_words"}
    return SamplingParams(**{**defaults, **given})


def _ids(text: str) -> list[int]:
    """Return token ids that are separated by spaces or commas."""
    return [int(word) for word in text.replace(",", " ").split()]


def _bias(text: str) -> tuple[int, float]:
    id_, _, bias = text.partition("=")
    return int(id_), float(bias)


_ids.__name__, _bias.__name__ = "token ids", "ID=BIAS"  # argparse prints this name for values that it cannot parse

_HOW: dict[Kind, dict[str, Any]] = {
    "number": {"type": float, "metavar": "X"},
    "integer": {"type": int, "metavar": "N"},
    "flag": {"action": "store_true"},
    "texts": {"action": "append", "metavar": "TEXT"},
    "tokens": {"type": _ids, "action": "extend", "metavar": "IDS"},
    "biases": {"type": _bias, "action": "append", "metavar": "ID=BIAS"},
}
"""The parser of each kind of option."""
