"""`infeng bench drafts`: decoding with several drafters in turn, on texts with given answers."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from infeng_bench import options
from infeng_bench.engine.draft_rounds import Decoded, Ids, replayed
from infeng_bench.engine.session import Session, opened
from infeng_bench.load.draft_texts import TEXTS, Conversation
from infeng_bench.models import shapes
from infeng_bench.stats import paired
from infeng_bench.stats.summary import spread
from infeng_core.api import UsageError, unknown_key_remedy

NAME = "drafts"

DRAFTERS = "none,ngram,suffix"
ROUNDS = 6
REQUESTS = 4
POSITIONS = 2048  # of a request, at most


def configure(parser: argparse.ArgumentParser) -> None:
    help = "drafters in turn; the first is what others are compared with"
    options.add(parser, "--speculate", options.words, DRAFTERS, "A,B[:K]", help)
    options.add(parser, "--text", options.words, ",".join(TEXTS), "A,B", f"of {', '.join(TEXTS)}")
    options.add(parser, "--data", str, None, "DIR", "where HumanEval, MBPP and prose lie ($INFENG_BENCH_DATA)")
    help = "tokenizer.json, or its folder, for the texts of a model with random weights (default: the model's)"
    options.add(parser, "--tokenizer", str, None, "PATH", help)
    options.add(parser, "--requests", options.positive, REQUESTS, "N", "conversations of a round")
    options.add(parser, "--rows", options.positive, 1, "N", "conversations at a time")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    for text in arguments.text:
        if text not in TEXTS:
            raise UsageError(f"--text {text}", "there is no such text", unknown_key_remedy(text, TEXTS))
    if arguments.synthetic:
        arguments.synthetic = shapes.lengthened(arguments.synthetic, POSITIONS)
    with contextlib.ExitStack() as stack:
        sessions = {name: stack.enter_context(_opened(arguments, name)) for name in dict.fromkeys(arguments.speculate)}
        first = next(iter(sessions.values()))
        encode = _encoder(arguments.tokenizer, first)
        first.restart()
        measurements = []
        for text in arguments.text:
            conversations = _fitting(TEXTS[text](arguments.data, arguments.seed), encode, first)
            measurements += _measured(arguments, text, conversations, sessions)
        figures = {"measurements": measurements, "rounds": arguments.rounds, "rows": arguments.rows}
        result = first.record(NAME, figures | {"requests": arguments.requests}, seed=arguments.seed)
    return options.deliver(result, arguments, _lines(result))


def _opened(arguments: argparse.Namespace, drafter: str) -> contextlib.AbstractContextManager[Session]:
    name, colon, count = drafter.partition(":")
    tokens = options.positive(count) if colon else "auto"
    return opened(arguments, kv_cache__prefix=True, speculation__use=name, speculation__tokens=tokens)


def _encoder(path: str | None, session: Session) -> Callable[[str], list[int]]:
    """Return what turns a text into ids."""
    if path is None:
        return session.engine.tokenize
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # of Rust
        raise UsageError(f"--tokenizer {path}", f"is none ({error})", "give a tokenizer.json or its folder") from None
    if made.get_vocab_size() > session.engine.model.config.vocab:
        why = f"it has {made.get_vocab_size()} tokens, and the model {session.engine.model.config.vocab}"
        raise UsageError(f"--tokenizer {path}", why, "give the tokenizer of the model's shapes")
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


def _fitting(
    conversations: Iterator[Conversation], encode: Callable[[str], list[int]], session: Session
) -> Iterator[Ids]:
    """Yield the conversations as ids, without those that are too long or have an answer of one token."""
    most = min(POSITIONS, session.engine.limits.context)
    for conversation in conversations:
        turns = [(encode(turn.prompt), encode(turn.answer)) for turn in conversation]
        if all(len(prompt) + len(answer) <= most and len(answer) > 1 for prompt, answer in turns):
            yield turns


def _measured(
    arguments: argparse.Namespace, text: str, conversations: Iterator[Ids], sessions: Mapping[str, Session]
) -> list[dict[str, Any]]:
    """Return the figures of each drafter. A round before the others warms up."""
    rounds: dict[str, list[Decoded]] = {name: [] for name in sessions}
    total = (1 + arguments.rounds) * len(sessions)
    with tqdm(total=total, desc=f"{NAME} {text}", unit="turn", leave=False, disable=None) as bar:
        for number in range(1 + arguments.rounds):
            given = list(itertools.islice(conversations, arguments.requests))
            if len(given) < arguments.requests:
                why = f"what fits into the model's context lasts for {number} rounds with the first"
                raise UsageError(f"text {text}", why, "ask for fewer --pairs or --requests, or give a model with more")
            for name in _turned(list(sessions), number):
                rounds[name].append(replayed(sessions[name].engine, given, arguments.rows, tenant=text))
                bar.update()
    return list(_figures(text, {name: found[1:] for name, found in rounds.items()}))


def _turned(names: list[str], number: int) -> list[str]:
    """Return the engines in the order of a round: each begins in turn, and every other round goes backwards."""
    begin = number // 2 % len(names)
    order = names[begin:] + names[:begin]
    return order[::-1] if number % 2 else order


def _figures(text: str, rounds: Mapping[str, Sequence[Decoded]]) -> Iterator[dict[str, Any]]:
    rates = {name: [one.tokens / one.seconds for one in found] for name, found in rounds.items()}
    for name, found in rounds.items():
        tokens, drafted = sum(one.tokens for one in found), sum(one.drafted for one in found)
        figures: dict[str, Any] = {
            "text": text,
            "drafter": name,
            "tokens": tokens,
            "decode_tokens_per_s": spread(rates[name]),
            "tokens_per_step": tokens / sum(one.steps for one in found),
            "drafted_per_token": drafted / tokens,
        }
        if drafted:
            figures["acceptance"] = sum(one.accepted for one in found) / drafted
        for other in rates:
            if other != name:
                over = paired.ratios(rates[name], rates[other])
                low, high = paired.lower_bound(over), paired.upper_bound(over)
                figures.setdefault("over", {})[other] = {
                    "ratio": spread(over)["median"],
                    "low": low.value,
                    "high": high.value,
                    "confidence": low.confidence,
                }
        yield figures


def _lines(result: Mapping[str, Any]) -> list[str]:
    """Return the printed table."""
    measurements = result["measurements"]
    names = list(dict.fromkeys(one["drafter"] for one in measurements))
    rows = [["text", "drafter", "tokens/s", "a step", "acceptance", *(f"over {name}" for name in names)]]
    for one in measurements:
        over = one.get("over", {})
        rows.append(
            [
                one["text"],
                one["drafter"],
                f"{one['decode_tokens_per_s']['median']:.1f}",
                f"{one['tokens_per_step']:.2f}",
                f"{one['acceptance']:.0%}" if "acceptance" in one else "-",
                *(
                    f"{over[name]['ratio']:.2f} ({over[name]['low']:.2f} to {over[name]['high']:.2f})"
                    if name in over
                    else "-"
                    for name in names
                ),
            ]
        )
    return options.columns(rows)
