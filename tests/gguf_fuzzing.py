"""Damages a sound GGUF for a while: ``python gguf_fuzzing.py SOUND.gguf SECONDS SEED [own|atheris]``.

Whatever the bytes are, reading them ends in a model or in an error of this project, soon and in little memory. atheris,
where it is installed, looks for damage that reaches new lines; else bytes, numbers and lengths are changed at random.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

MEMORY = 4 << 30
SLOWEST = 20.0  # seconds for one file, on a machine that does other things too
EDGES = [0, 1, 2, 7, 31, 32, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]


def read(data: bytes, path: Path) -> bool:
    """Read everything of a file with these bytes; return whether it is a model. Other errors come through."""
    from infeng_core.errors import InfengError
    from infeng_core.formats.gguf.checkpoint import GgufCheckpoint

    path.write_bytes(data)
    begin = time.monotonic()
    try:
        checkpoint = GgufCheckpoint(path)
        checkpoint.side_files()
        for spec in (*checkpoint.layout.tensors, *checkpoint.layout.vectors):
            for part in spec.parts:
                checkpoint.array(part)
    except InfengError as error:
        assert str(error) and str(error).isprintable()
        return False
    finally:
        assert time.monotonic() - begin < SLOWEST, "it took too long"
    return True


def damaged(sound: bytes, rng: random.Random) -> bytes:
    """Change some bytes, numbers or lengths; most of it where the header is."""
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


def own(sound: bytes, seconds: float, seed: int, path: Path) -> None:
    """Damage at random until the time is over; say how much was read."""
    assert read(sound, path), "the file is not sound"
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    count = models = 0
    while time.monotonic() < end:
        data = damaged(sound, rng)
        try:
            models += read(data, path)
        except BaseException:
            Path("crash.gguf").write_bytes(data)
            raise
        count += 1
    print(f"{count} files, of which {models} were models")


def guided(sound: Path, seconds: int, seed: int, path: Path) -> None:
    """Let atheris choose; it ends the process."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["infeng_core.formats.gguf", "infeng_core.formats.pieces"]):
        import infeng_core.formats.gguf.checkpoint  # noqa: F401
    assert read(sound.read_bytes(), path), "the file is not sound"
    corpus = path.parent / "corpus"
    corpus.mkdir()
    (corpus / "sound").write_bytes(sound.read_bytes())
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-len_control=0", "-timeout=60"]
    options.append(f"-max_len={sound.stat().st_size + 4096}")
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: (read(data, path), None)[1])
    atheris.Fuzz()


def main() -> None:
    """Run as the arguments say."""
    sound, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    how = sys.argv[4] if len(sys.argv) > 4 else "atheris" if find_spec("atheris") else "own"
    os.environ.setdefault("INFENG_LOG", "error")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        if how == "atheris":
            guided(sound, int(seconds), seed, path)
        else:
            own(sound.read_bytes(), seconds, seed, path)


if __name__ == "__main__":
    main()
