"""The loops of `libinfeng_bench`: core clock, memory reads, int8 multiplications. The loops time themselves."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from infeng_core.api import ResourceError, UsageError, unknown_key_remedy
from infeng_core.api.kernels import NEEDS, closure, detect

HUGE = 2 << 20


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).parents[1] / "libinfeng_bench.so"))
    i32, i64, f64, pointer, text = ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("clock", f64, [f64]),
        ("map", pointer, [i64, i32]),
        ("unmap", None, [pointer, i64]),
        ("read", f64, [pointer, i64, i32, i32, i64]),
        ("int8_isa", text, [i32]),
        ("int8", f64, [text, i32, f64]),
    ):
        function = getattr(library, f"infeng_bench_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def clock_hz(readings: int = 5, seconds: float = 0.004) -> float:
    """Return the present cycles per second of one core, from a chain of dependent additions.

    The best of several readings counts: a reading during which another program has the core is too low.
    """
    return max(float(_library().infeng_bench_clock(seconds)) for _ in range(readings))


class Memory:
    """Anonymous memory, all pages touched, huge pages advised."""

    def __init__(self, nbytes: int, threads: int) -> None:
        """Map and touch ``nbytes``, rounded down to whole huge pages."""
        self.nbytes = max(1, nbytes // HUGE) * HUGE
        self._threads = threads
        self._address = _library().infeng_bench_map(self.nbytes, threads)
        if not self._address:
            raise ResourceError("roofline", f"there are no {self.nbytes >> 20} MB of memory", "give a smaller --buffer")

    def read(self, threads: int, streams: int, prefetch: int) -> float:
        """Read the memory once and return bytes per second.

        Each thread reads a contiguous part as ``streams`` (1, 2 or 4) interleaved streams and prefetches ``prefetch``
        bytes ahead (0: none). Raises ValueError after ``close``.
        """
        if not self._address:
            raise ValueError("read after close")
        return self.nbytes / float(_library().infeng_bench_read(self._address, self.nbytes, threads, streams, prefetch))

    def close(self) -> None:
        """Unmap the memory."""
        address, self._address = self._address, None
        if address:
            _library().infeng_bench_unmap(address, self.nbytes)


def int8_isas() -> list[str]:
    """Return the instruction sets of the loops that this processor can run, the oldest first."""
    features, found = detect().features, []
    index = 0
    while name := _library().infeng_bench_int8_isa(index):
        if closure([name.decode()]) <= features:
            found.append(name.decode())
        index += 1
    return found


def int8_macs_per_s(isa: str, threads: int, seconds: float = 0.05) -> float:
    """Return int8 multiply-adds per second of all threads; raises UsageError if the processor lacks ``isa``."""
    usable = int8_isas()
    if isa not in usable:
        why = "this processor does not have it" if isa in NEEDS else "there is no such instruction set"
        raise UsageError(f"instruction set {isa!r}", why, unknown_key_remedy(isa, usable))
    return float(_library().infeng_bench_int8(isa.encode(), threads, seconds))
