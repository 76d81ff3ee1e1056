"""Decode one row side by side with llama.cpp, interleaved A B A B: medians of the ratios, pair by pair.

``python compare.py MODEL_DIR MODEL.gguf --peer-python PEER_ENV/bin/python``. Each engine lives in a process and an
environment of its own; the one that is not measured sleeps on its standard input. Contexts grow alike on both sides.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path


class Worker:
    """One engine's process."""

    def __init__(self, python: str, engine: str, model: str, options: argparse.Namespace) -> None:
        """Start it and wait until it has loaded and prefilled."""
        script = str(Path(__file__).with_name("decode_workers.py"))
        command = [python, script, engine, model, "--threads", str(options.threads), "--context", str(options.context)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def decode(self, tokens: int) -> float:
        """Decode ``tokens`` tokens and return tokens/s from the median step."""
        print(tokens, file=self.process.stdin, flush=True)
        return 1 / statistics.median(self._answer()["seconds"])

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[2]} ended early")
        return json.loads(line)


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("gguf")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=800, help="positions before the first pair")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24, help="tokens decoded by each side of a pair")
    options = parser.parse_args()
    ours = Worker(sys.executable, "infeng", options.model, options)
    peer = Worker(options.peer_python, "llama_cpp", options.gguf, options)
    pairs = [(ours.decode(options.tokens), peer.decode(options.tokens)) for _ in range(options.pairs)]
    ours.close()
    peer.close()
    ratios = sorted(a / b for a, b in pairs)
    result = {
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "context": [options.context, options.context + options.pairs * options.tokens],
        "infeng_tokens_per_s": statistics.median(a for a, _ in pairs),
        "llama_cpp_tokens_per_s": statistics.median(b for _, b in pairs),
        "ratio": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
        "pairs": pairs,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
