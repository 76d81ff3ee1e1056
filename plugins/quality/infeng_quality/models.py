"""The two models of a comparison: loading, tokenization, and their facts in results."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infeng_core.api import Engine, ModelError, UsageError, load_config
from infeng_quality import teacher, texts
from infeng_quality.texts import Text, Window

EXACT: Mapping[str, object] = {"model.format": "f32", "kv_cache.dtype": "f32", "adapters.dtype": "f32"}
"""Settings of the reference; f32 weights imply f32 activations."""

REFERENCES: Mapping[str, Mapping[str, object]] = {
    "f32": EXACT,
    "bf16": {"model.format": "bf16", "kv_cache.dtype": "f16", "adapters.dtype": "bf16"},
}
"""Settings of the reference by the format in which it runs. bf16 has no cache format of its own; f16 is finer."""


def is_manifest(reference: str) -> bool:
    """Return whether a model reference is an engine manifest."""
    return Path(reference).suffix in (".yaml", ".yml")


def model_of(reference: str, instead: str | None = None) -> str:
    """Return the model of a reference: itself, or the model of its manifest, or else that of ``instead``.

    Raises UsageError if there is none, and the errors of reading a manifest.
    """
    if not is_manifest(reference):
        return reference
    found = load_config(Path(reference)).model.path
    if found:
        return str(found)
    if instead is None:
        raise UsageError(reference, "its manifest names no model", "set model.path in it")
    return model_of(instead)


def open_model(reference: str, settings: Mapping[str, object], instead: str | None = None) -> Engine:
    """Load a model directory, a hub name or an engine manifest.

    settings: by their dotted names, with precedence over the manifest's; None is ignored. instead: the model of a
    manifest without one. Raises InfengError.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if not is_manifest(reference):
        return Engine(config=load_config(overrides={**given, "model.path": reference}))
    if "model.path" not in given:
        given["model.path"] = model_of(reference, instead)
    return Engine(config=load_config(Path(reference), overrides=given))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the candidate's formats and settings, and of the threads."""
    parser.add_argument("--format", metavar="F", help="weight format of the candidate (default: its own)")
    parser.add_argument("--kv", metavar="F", help="cache format of the candidate, such as f16 or int8h")
    parser.add_argument("--quantizer", metavar="Q", help="quantizer of the candidate's codes and scales")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="assignments", help="a setting of the candidate"
    )


def candidate_settings(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the settings of these options by their dotted names."""
    found: dict[str, object] = {
        "model.format": arguments.format,
        "kv_cache.dtype": arguments.kv,
        "model.quantizer": arguments.quantizer,
        "threads.count": arguments.threads,
    }
    for text in arguments.assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}", "no value", "write KEY.SUB=VALUE")
        found[key] = value
    return found


def add_reference_option(parser: argparse.ArgumentParser) -> None:
    """Add the format in which the reference runs."""
    help = "format in which the reference runs: f32 (default), or bf16 with a cache of f16"
    parser.add_argument("--ref-format", choices=sorted(REFERENCES), default="f32", metavar="F", help=help)


def open_reference(reference: str, threads: int | None, format: str = "f32") -> Engine:
    """Load a model for a comparison: at f32, weights, activations and cache, or at bf16. Raises InfengError."""
    return open_model(reference, {**REFERENCES[format], "threads.count": threads, **teacher.settings()})


def open_candidate(candidate: str, reference: str, settings: Mapping[str, object]) -> Engine:
    """Load the candidate; a manifest without a model applies to the reference's. Raises InfengError."""
    return open_model(candidate, {**settings, **teacher.settings()}, reference)


def tokenized(engines: Sequence[Engine], sources: Sequence[Text], context: int, most: int | None) -> list[Window]:
    """Return the windows of all documents, with at most ``most`` predicted tokens, by the first engine's tokenizer.

    Raises UsageError if another tokenizer gives other ids for a text, or if no token is predicted.
    """
    first = engines[0]
    context = min(context, *(teacher.Teacher(one.executable, one.limits).context for one in engines))
    found: list[Window] = []
    held = 0
    for number, source in enumerate(sources):
        for index, document in enumerate(source.documents):
            if most is not None and held >= most:
                break
            ids, *others = [one.tokenizer.encode([document], parse_special=False)[0] for one in engines]
            if any(other != ids for other in others):
                why = f"document {index} of {source.name} has other tokens than with the reference's"
                raise UsageError("the candidate's tokenizer", why, "compare models with one vocabulary")
            new = texts.windows(ids, first.tokenizer.bos_id, context, number, index)
            new = new if most is None else texts.first_tokens(new, most - held)
            held += sum(window.predicted for window in new)
            found += new
    if not found:
        raise UsageError("--texts", "there is no token to predict", "give a longer text")
    return found


def check_alike(reference: Engine, candidate: Engine) -> None:
    """Raise UsageError if the two cannot be compared token by token."""
    ours, theirs = reference.model.config.vocab, candidate.model.config.vocab
    if ours != theirs:
        why = f"has a vocabulary of {theirs} tokens, the reference of {ours}"
        raise UsageError(f"{candidate.model.source}", why, "compare models with one vocabulary")


def check_finite(name: str, *figures: Any) -> None:
    """Raise ModelError if a model's figures are not finite."""
    if not all(np.isfinite(one).all() for one in figures):
        raise ModelError(name, "its logits are not finite", "infeng doctor shows the kernels it runs with")


def facts(engine: Engine, name: str) -> dict[str, Any]:
    """Return the facts of a model for a result."""
    model = engine.model
    count: dict[str, int] = {}
    for tensor, format in model.formats_used.items():
        count[format] = count.get(format, 0) + model.tensors[tensor].nbytes
    weights = sum(tensor.n * tensor.k for tensor in model.tensors.values())
    return {
        "model": name,
        "id": model.id,
        "quantizer": model.quantizer,
        "formats": dict(model.formats_used),
        "bytes_by_format": count,
        "bytes": model.nbytes,
        "bits_per_weight": 8 * sum(count.values()) / weights,
        "kv_dtype": engine.config.kv_cache.dtype,
    }
