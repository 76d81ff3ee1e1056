"""Skips these tests where the wheel is not installed."""

import pytest

pytest.importorskip("infeng_suffix", reason="the suffix wheel is not installed")
