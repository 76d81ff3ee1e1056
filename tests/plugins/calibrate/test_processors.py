"""Calibration gives the same bytes whatever instructions a processor has."""

import os
import platform
import subprocess
import sys

import pytest

MADE = """
import hashlib
import numpy as np
from infeng_calibrate import _native

random, made = np.random.default_rng(0), hashlib.sha256()
n, k = 37, 330
x = (random.standard_normal((1100, k)) + 2 * random.standard_normal((1100, 1))).astype(np.float32)
w = random.standard_normal((n, k)).astype(np.float32)
h, drift = np.zeros((k, k)), np.zeros((k, k))
_native.add_gram(x, h)
_native.add_cross((0.1 * np.roll(x, 1, axis=1)).astype(np.float32), x, drift)
made.update(h.tobytes() + drift.tobytes())
h = (np.triu(h) + np.triu(h, 1).T) / len(x) + 0.05 * np.eye(k)
factors = h.copy()
_native.factor(factors)
made.update(np.tril(factors).tobytes())
order = np.arange(k, dtype=np.int32)[::-1].copy()
w = _native.aim(w, drift / len(x), order, factors)
d, s, z = _native.choose_sub_scales(w, np.diag(h).copy(), 4)
codes = _native.choose_codes(w, order, factors, d * s, (-z).astype(np.int8), (15 - z).astype(np.int8), 32)
_native.descend(w, h, 0.01, d, s, z, codes, 4)
_native.refit_scales(w, codes, h, d)
for array in (w, d, s, z, codes, _native.round_inputs(x)):
    made.update(array.tobytes())
print(made.hexdigest())
"""


def digest(mask: str) -> str:
    environment = os.environ | {"INFENG_CPU_FEATURES": mask}
    done = subprocess.run([sys.executable, "-P", "-c", MADE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="masks are those of x86-64")
def test_bytes_are_the_same_without_vnni_avx_512_and_avx2() -> None:
    assert len({digest(mask) for mask in ("", "-avx512_vnni", "-avx512f", " -fma , -avx512f", "-avx2,-avx512f")}) == 1
