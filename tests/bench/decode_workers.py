"""Workers of compare.py: load an engine, prefill, then decode N tokens each time a line says so.

``python decode_workers.py infeng|llama_cpp MODEL --threads T --context C``; each line on stdin is a number of tokens,
each line on stdout a JSON object ``{"seconds": [per step], "context": positions so far}``. Runs in that engine's own
environment.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np

Step = Callable[[], None]


def open_infeng(model: str, threads: int, prompt: list[int]) -> Step:
    """Prefill one request and return a function that decodes one token of it."""
    from infeng_core import Engine, SamplingParams

    engine = Engine(model, threads=threads)
    stream = engine.submit(prompt, SamplingParams(temperature=0.0, max_tokens=10**6, ignore_eos=True))
    while not stream.pending():  # the prompt takes several steps
        engine.step()

    def step() -> None:
        engine.step()

    return step


def open_llama_cpp(model: str, threads: int, prompt: list[int]) -> Step:
    """Do the same with llama.cpp."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
    llama.eval(prompt)

    def step() -> None:
        llama.eval([300])  # any token: the cost does not depend on it

    return step


def main() -> None:
    """Serve decode commands until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["infeng", "llama_cpp"])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args()
    prompt = np.random.default_rng(0).integers(300, 31000, options.context).tolist()
    step = {"infeng": open_infeng, "llama_cpp": open_llama_cpp}[options.engine](options.model, options.threads, prompt)
    context = options.context
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
            context += 1
        print(json.dumps({"seconds": seconds, "context": context}), flush=True)


if __name__ == "__main__":
    main()
