"""Damages sound GGUF files for a while: ``python tests/gguf_fuzzing.py [SECONDS]``, of a checkout with its wheels.

Whatever the bytes are, opening them ends in a model, in an adapter, or in an error of this project, soon and in little
memory. atheris, where it is installed (``pip install atheris``), looks for damage that reaches new lines; else bytes,
numbers and lengths are changed at random. What fails is left as ``crash-*`` where the command ran, and
``python tests/gguf_fuzzing.py --replay crash-...`` opens it again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf_seeds
from infeng_convert.api import parse_config

MEMORY = 4 << 30
SLOWEST = 20.0  # seconds for one file, on a busy machine
EDGES = [0, 1, 2, 7, 31, 32, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]
READERS = ["infeng_core.formats", "infeng_gguf", "infeng_core.models", "infeng_tokenizers"]


def open_model(path: Path) -> None:
    """Open a file as a model as an engine does: metadata, all tensors packed in their formats, tokenizer."""
    from infeng_convert.packing import gather_vector, pack_tensor
    from infeng_gguf.checkpoint import GgufCheckpoint
    from infeng_tokenizers.api import HfTokenizer

    from infeng_core.formats.format_choice import BASE, FormatChoice
    from infeng_core.formats.quant import builtin_format
    from infeng_core.formats.shards import aligned_bytes

    checkpoint = GgufCheckpoint(path)
    formats = checkpoint.formats(FormatChoice("int8-row", {}, frozenset({BASE})), builtin_format)
    for spec in checkpoint.layout.tensors:
        format = builtin_format(formats[spec.name])
        pack_tensor(spec, checkpoint, format, aligned_bytes(spec.panels * format.panel_bytes(spec.k)), threads=1)
    for vector in checkpoint.layout.vectors:
        gather_vector(vector, checkpoint)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, data in checkpoint.side_files().items():
            (Path(folder) / name).write_bytes(data)
        tokenizer = HfTokenizer(Path(folder), settings())
        tokenizer.decode(tokenizer.encode(["ab c\n<s>"])[0])


def open_adapter(path: Path) -> None:
    """Open a file as an adapter of the mixture of experts among the seeds."""
    from infeng_gguf.adapter import GgufAdapterReader

    GgufAdapterReader().read(path, base())


@cache
def settings() -> Any:
    """Return an engine's configuration."""
    from infeng_core.plug.assembly import load_config

    return load_config(None, environ={})


@cache
def base() -> Any:
    """Return the configuration of the adapters' base model."""

    return parse_config(gguf_seeds.GPT_OSS.config, "config.json")


def read(data: bytes, path: Path) -> bool:
    """Open these bytes as the kind of file that they claim to be; return whether they are valid."""
    from infeng_core.errors import InfengError

    path.write_bytes(data)
    begin = time.monotonic()
    try:
        (open_adapter if b"adapter.type" in data[:4096] else open_model)(path)
    except InfengError as error:
        assert str(error) and str(error).isprintable()
        return False
    finally:
        assert time.monotonic() - begin < SLOWEST, "it took too long"
    return True


def damaged(sound: bytes, rng: random.Random) -> bytes:
    """Change some bytes, numbers or lengths, mostly in the header."""
    data = bytearray(sound)
    header = len(data) if rng.random() < 0.1 else min(len(data), 1 << rng.randint(6, 15))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(header)
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((4, 8))
            data[at : at + width] = (rng.choice(EDGES) % 256**width).to_bytes(width, "little")
        elif kind == 3:
            del data[at : at + rng.choice((1, 2, 8, 100))]
        elif kind == 4:
            data[at:at] = data[at : at + rng.choice((1, 8, 40))]
        else:
            del data[rng.randrange(len(data)) :]
        if len(data) < 32:
            break
        header = min(header, len(data))
    return bytes(data)


def at_random(seeds: list[Path], seconds: float, seed: int, path: Path) -> None:
    """Damage files at random until the time is over; print the counts."""
    sound, rng = [one.read_bytes() for one in seeds], random.Random(seed)
    end = time.monotonic() + seconds
    count = opened = 0
    while time.monotonic() < end:
        data = damaged(rng.choice(sound), rng)
        try:
            opened += read(data, path)
        except BaseException:
            Path(f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}").write_bytes(data)
            raise
        count += 1
    print(f"{count} files, of which {opened} were models or adapters")


def guided(seeds: list[Path], seconds: float, seed: int, path: Path) -> None:
    """Let atheris choose the damage; it ends the process."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    longest = max(one.stat().st_size for one in seeds) + 4096
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", f"-max_len={longest}"]
    options += ["-len_control=0", "-timeout=60", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(seeds[0].parent)], lambda data: (read(data, path), None)[1])
    atheris.Fuzz()


def instrument() -> None:
    """Import what reads files so that atheris sees which of its lines run."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=READERS):
        import infeng_tokenizers.hftokenizer  # noqa: F401


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description="Damage sound GGUF files, and open them.")
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="of what is chosen at random (1)")
    parser.add_argument("--how", choices=("atheris", "random"), help="by default atheris where it is installed")
    parser.add_argument(
        "--replay", nargs="+", type=Path, metavar="FILE", help="open these files, and say what they are"
    )
    asked = parser.parse_args()
    how = asked.how or ("atheris" if find_spec("atheris") else "random")
    os.environ |= {"INFENG_LOG": "error", "RAYON_NUM_THREADS": "1"}
    if how == "atheris" and not asked.replay:
        instrument()
    with tempfile.TemporaryDirectory() as folder:
        path, corpus = Path(folder) / "m.gguf", Path(folder) / "corpus"
        corpus.mkdir()
        if asked.replay:
            for file in asked.replay:
                print(f"{file}: {'sound' if read(file.read_bytes(), path) else 'refused'}")
            return
        seeds = gguf_seeds.write(corpus)
        for one in seeds:
            assert read(one.read_bytes(), path), f"{one.name} is not sound"
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        (guided if how == "atheris" else at_random)(seeds, asked.seconds, asked.seed, path)


if __name__ == "__main__":
    main()
