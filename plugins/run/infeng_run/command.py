"""`infeng run`: completes one prompt, or several in one batch. Only the completion goes to stdout."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from infeng_processors.api import drop_bad_words

from infeng_core.api import UsageError, add_config_options, config_from, say
from infeng_core.api.servers import (
    adapters_of,
    add_lora_options,
    add_model,
    add_model_options,
    add_sampling_options,
    as_text,
    emit,
    loras,
    model_options,
    option_groups,
    processors_of,
    sampling_params,
)

if TYPE_CHECKING:
    from infeng_core.api import Completion, Engine, Request

MAX_PROMPT_BYTES = 16 << 20
"""Bytes of a file or of standard input; more than any context takes."""


class Run:
    """The command."""

    name = "run"
    help = "complete a prompt with a model"
    takes_run_options = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_model(parser)
        help = "prompt; several are answered in one batch; - reads one from standard input"
        parser.add_argument("text", nargs="*", default=[], metavar="PROMPT", help=help)
        parser.set_defaults(last_positional="text")
        parser.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="prompt; repeats, all in one batch")
        parser.add_argument("-f", "--file", metavar="FILE", help="file that holds the prompt; - is standard input")
        parser.add_argument(
            "--ids", action="append", metavar="IDS", help='prompt as token ids, "1 2 3"; answers with ids; repeats'
        )
        add_model_options(parser)
        parser.add_argument("--echo", action="store_true", help="print the prompt before its completion")
        parser.add_argument("--json", action="store_true", help="print one JSON object (a list for several prompts)")
        add_lora_options(parser)
        add_sampling_options(parser)
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Load the model, complete the prompts, print; raises InfengError, KeyboardInterrupt on Ctrl-C."""
        for group in option_groups(arguments):
            status = group.run(arguments, partial(read_prompts, arguments))
            if status is not None:
                return status
        from infeng_core.api import Request

        prompts = read_prompts(arguments)
        params = sampling_params(arguments, processors=processors_of(arguments))
        adapters = adapters_of(arguments, len(prompts))
        requests = [Request(prompt, params, adapter=adapter) for prompt, adapter in zip(prompts, adapters, strict=True)]
        config = config_from(arguments, **model_options(arguments), tokenizer__use="ids" if arguments.ids else None)
        from infeng_core.api import Engine

        begin = time.perf_counter()
        with Engine(config=config) as engine:
            params = drop_bad_words(arguments, params, engine.tokenizer)
            requests = [replace(request, params=params) for request in requests]
            for name, path, scale in loras(arguments):
                engine.adapters.load(name, path, scale=scale)
            loaded = time.perf_counter() - begin
            show = show_json if arguments.json else show_text
            work = partial(show, engine, requests, arguments.echo, loaded)
            completions = interruptible(engine, partial(within, engine, arguments, work))
            tokens = sum(completion.usage.completion_tokens for completion in completions)
            longest = max((completion.timings.total for completion in completions), default=0.0)
            rate = f", {tokens / longest:.1f} tokens/s" if longest else ""
            more = guessing(completions) + loading(engine)
            say(f"loaded in {loaded:.2f} s; {tokens} tokens in {longest:.2f} s{rate}{more}", to_stderr=True)
        return 0


def loading(engine: Engine) -> str:
    """Return the part of the summary about adapters; "" if none was loaded."""
    loaded = [(info.name, info.load_seconds) for info in engine.adapters.infos() if info.load_seconds is not None]
    return "".join(f"; adapter {name} loaded in {seconds:.3f} s" for name, seconds in loaded)


def guessing(completions: list[Completion]) -> str:
    """Return the part of the summary about speculation; "" without guesses."""
    drafted = sum(completion.usage.drafted_tokens for completion in completions)
    accepted = sum(completion.usage.accepted_tokens for completion in completions)
    return f"; {accepted} of {drafted} guessed tokens were right ({accepted / drafted:.0%})" if drafted else ""


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """Return the prompts from the given source; raises UsageError unless exactly one source is given."""
    is_stdin = arguments.text == ["-"]
    words = [] if is_stdin else arguments.text
    sources = (words, arguments.prompt, arguments.ids, arguments.file, "-" if is_stdin else None)
    if words and "-" in words:
        raise UsageError("prompt", "- (standard input) stands alone", "give texts, or - alone")
    given = [source for source in sources if source]
    if len(given) != 1:
        why = "PROMPT, -p, --ids, -f and - exclude each other" if given else "none is given"
        raise UsageError("prompt", why, "give PROMPT, -p TEXT, --ids IDS, -f FILE or - (standard input)")
    if isinstance(given[0], list):
        return list(given[0])
    name = str(given[0])
    try:
        data = _read(name)
    except OSError as error:
        raise UsageError(name, error.strerror or str(error), "give a file that can be read") from error
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(name, f"it has more than {MAX_PROMPT_BYTES} bytes", "give a shorter prompt")
    try:
        return [data.decode("utf-8")]
    except UnicodeDecodeError as error:
        raise UsageError(name, f"byte {error.start} is not UTF-8", "convert the file to UTF-8") from error


def _read(name: str) -> bytes:
    """Return the beginning of a file or, for "-", of standard input: at most one byte more than a prompt may have."""
    if name != "-":
        with Path(name).open("rb") as file:
            return file.read(MAX_PROMPT_BYTES + 1)
    if sys.stdin is None:
        raise UsageError("standard input", "it is closed", "give -p TEXT or -f FILE")
    return sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)


def interruptible(engine: Engine, work: Callable[[threading.Event], list[Completion]]) -> list[Completion]:
    """Run ``work`` beside the main thread, which handles Ctrl-C during a step, and stop it then."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work, stop)
        try:
            return future.result()
        except KeyboardInterrupt:
            stop.set()
            while not future.done():
                engine.interrupt()
                time.sleep(0.01)
            raise


def within(
    engine: Engine,
    arguments: argparse.Namespace,
    work: Callable[[threading.Event], list[Completion]],
    stop: threading.Event,
) -> list[Completion]:
    """Do ``work`` on this thread, within the contexts of plugins' options."""
    with ExitStack() as contexts:
        for group in option_groups(arguments):
            contexts.enter_context(group.around(arguments, engine))
        return work(stop)


def show_text(
    engine: Engine, requests: list[Request], echo: bool, loaded: float, stop: threading.Event
) -> list[Completion]:
    """Stream one completion to stdout, or print several in the order of their prompts, each on a line of its own.

    A label on standard error names the prompt of each answer.
    """
    whole: dict[int, Completion] = {}
    printed = 0
    prompts = [str(request.prompt) for request in requests]
    if echo and len(prompts) == 1:
        emit(prompts[0])
    for event in engine.stream(requests):
        if stop.is_set():
            break
        if len(prompts) == 1:
            emit(event.text)
        if event.completion is not None:
            whole[event.index] = event.completion
        while len(prompts) > 1 and printed in whole:
            label(printed, requests[printed])
            emit((prompts[printed] if echo else "") + whole[printed].text + "\n")
            printed += 1
    if len(prompts) == 1 and sys.stdout.isatty():
        emit("\n")
    return [whole[index] for index in sorted(whole)]


def label(index: int, request: Request) -> None:
    """Print the prompt and the adapter of the next answer on standard error."""
    prompt = request.prompt if isinstance(request.prompt, str) else " ".join(map(str, request.prompt))
    who = f" ({as_text(request.adapter)})" if request.adapter is not None else ""
    say(f"[{index + 1}]{who} {shorten(prompt, 60, placeholder='...')}".rstrip(), to_stderr=True)


def show_json(
    engine: Engine, requests: list[Request], echo: bool, loaded: float, stop: threading.Event
) -> list[Completion]:
    """Print the completions with all their fields as JSON."""
    completions = engine.generate(requests)
    kernels = [
        {
            "op": op.op,
            "detail": op.detail,
            "rows": op.rows,
            "kernel": f"{op.library}/{op.kernel}",
            "why": op.reason,
        }
        for op in engine.bound()
    ]
    facts = [
        as_json(completion, f"{request.prompt}{completion.text}" if echo else completion.text, loaded)
        | {"adapter": as_text(request.adapter), "kernels": kernels}
        for request, completion in zip(requests, completions, strict=True)
    ]
    emit(json.dumps(facts[0] if len(facts) == 1 else facts, ensure_ascii=False, indent=2) + "\n")
    return completions


def as_json(completion: Completion, text: str, loaded: float) -> dict[str, Any]:
    """Return a completion as plain data; times in seconds, rates in tokens per second."""
    usage, timings = completion.usage, completion.timings
    decoding = timings.total - timings.first_token
    more = usage.completion_tokens - 1
    return {
        "text": text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "drafted_tokens": usage.drafted_tokens,
            "accepted_tokens": usage.accepted_tokens,
        },
        "timings": {
            "load_s": loaded,
            "queued_s": timings.queued,
            "first_token_s": timings.first_token,
            "total_s": timings.total,
            "decode_tokens_per_s": more / decoding if more > 0 and decoding > 0 else None,
        },
    }
