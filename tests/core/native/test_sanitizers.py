"""The executor and calibration under sanitizers, as `make sanitize` runs them."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_executor_and_calibration_are_clean_under_address_undefined_and_thread_sanitizers():
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-C", root, "sanitize"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("native_stress: ok") == 2
    assert done.stdout.count("calibrate_stress: ok") == 2
