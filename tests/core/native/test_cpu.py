"""What the core says about this machine, against what the system says."""

import os
import platform
from pathlib import Path

import pytest

from infeng_core import _native

# Feature -> flag of /proc/cpuinfo, where the names differ.
KERNEL_NAMES = {"avx512_vbmi": "avx512vbmi"}


@pytest.fixture(scope="module")
def info():
    return _native.cpu_info()


def test_features_agree_with_the_operating_system(info):
    if platform.machine() != "x86_64":
        pytest.skip("compares the flags of x86-64")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split(":")[1].split())
    assert info["arch"] == "x86_64"
    assert {KERNEL_NAMES.get(name, name) for name in info["features"]} <= flags
    assert not set(info["features"]) & set(info["masked"])
    usable = {"avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
    assert usable & flags == usable & set(info["features"])


def test_a_masked_feature_has_a_reason(info):
    assert all(len(reason) > 10 for reason in info["masked"].values())


def test_vendor_and_model_are_those_of_the_processor(info):
    if platform.machine() != "x86_64":
        pytest.skip("CPUID belongs to x86-64")
    text = Path("/proc/cpuinfo").read_text()
    assert info["vendor"] in text
    assert info["model"] in text


def test_cores_are_those_of_the_affinity_mask(info):
    assert info["cores"] == len(os.sched_getaffinity(0))
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert _native.cpu_info()["cores"] == 1
    finally:
        os.sched_setaffinity(0, mask)


def test_the_quota_is_a_number_of_cpus_or_none(info):
    assert info["quota"] is None or 0 < info["quota"] <= 4096
    limit = Path("/sys/fs/cgroup/cpu.max")
    if limit.exists() and limit.read_text().split()[0] != "max":
        quota, period = map(float, limit.read_text().split())
        assert info["quota"] <= quota / period


def test_caches_grow_with_their_level(info):
    sizes = [info["caches"][level] for level in ("l1d", "l2", "l3") if level in info["caches"]]
    assert sizes == sorted(sizes)
    assert all(size > 0 for size in sizes)
