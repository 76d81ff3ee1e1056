"""The core's facts about this machine, compared with the system's."""

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
    assert info.arch == "x86_64"
    assert {KERNEL_NAMES.get(name, name) for name in info.features} <= flags
    assert not set(info.features) & set(info.masked)
    usable = {"avx", "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
    assert usable & flags == usable & set(info.features)


def test_a_masked_feature_has_a_reason(info):
    assert all(len(reason) > 10 for reason in info.masked.values())


def test_vendor_and_model_are_those_of_the_processor(info):
    if platform.machine() != "x86_64":
        pytest.skip("CPUID belongs to x86-64")
    text = Path("/proc/cpuinfo").read_text()
    assert info.vendor in text
    assert info.model in text


def test_cores_are_those_of_the_affinity_mask(info):
    assert info.cores == len(os.sched_getaffinity(0))
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert _native.cpu_info().cores == 1
    finally:
        os.sched_setaffinity(0, mask)


def test_the_quota_is_a_number_of_cpus_or_none(info):
    assert info.quota is None or 0 < info.quota <= 4096
    limit = Path("/sys/fs/cgroup/cpu.max")
    if limit.exists() and limit.read_text().split()[0] != "max":
        quota, period = map(float, limit.read_text().split())
        assert info.quota <= quota / period


def test_caches_grow_with_their_level(info):
    sizes = [info.caches[level] for level in ("l1d", "l2", "l3") if level in info.caches]
    assert sizes == sorted(sizes)
    assert all(size > 0 for size in sizes)


QUOTAS = {
    "v2, own group": ("0::/app\n", {"app/cpu.max": "150000 100000"}, 1.5),
    "v2, an ancestor is tighter": (
        "0::/a/b/c\n",
        {"a/b/c/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"},
        2.0,
    ),
    "v2, unlimited": ("0::/app\n", {"app/cpu.max": "max 100000"}, None),
    "v2, root of a container": ("0::/\n", {"cpu.max": "50000 100000"}, 0.5),
    "v1": (
        "4:memory:/x\n3:cpu,cpuacct:/x\n",
        {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "v1, path of the host": (
        "3:cpuacct,cpu:/docker/1f\n",
        {"cpu,cpuacct/cpu.cfs_quota_us": "25000", "cpu,cpuacct/cpu.cfs_period_us": "50000"},
        0.5,
    ),
    "v1, unlimited": ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "nothing mounted": ("0::/app\n", {}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_the_quota_is_read_from_either_version_of_control_groups(tmp_path, case):
    groups, files, expected = QUOTAS[case]
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{k}": v + "\n" for k, v in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert _native.cpu_quota(str(tmp_path)) == expected
