"""The executor and calibration under sanitizers, as `make sanitize` runs them."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.nightly  # the compiler takes minutes for each
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_the_executor_and_calibration_are_clean_under_a_sanitizer(kind):
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-C", root, "sanitize", f"SANITIZERS={kind}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("native_stress: ok") == 1
    assert done.stdout.count("calibrate_stress: ok") == 1
