"""Available memory is the least that the machine and the control groups leave, by the files of the kernel."""

from pathlib import Path

import pytest

from infeng_core.errors import ResourceError
from infeng_core.machine.memory import MARGIN, available_bytes, require


def lay_out(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


MEMINFO = "MemTotal:       8000 kB\nMemFree:        1000 kB\nMemAvailable:   4000 kB\n"


def test_without_groups_the_machine_decides(tmp_path: Path) -> None:
    assert available_bytes(*lay_out(tmp_path, {"proc/meminfo": MEMINFO})) == 4000 * 1024


def test_a_group_and_those_around_it_count(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/outer/inner\n",
        "cgroup/outer/inner/memory.max": "max\n",
        "cgroup/outer/inner/memory.current": "5\n",
        "cgroup/outer/memory.max": "1000000\n",
        "cgroup/outer/memory.current": "400000\n",
        "cgroup/outer/memory.stat": "anon 1\ninactive_file 100000\n",
    }
    assert available_bytes(*lay_out(tmp_path, files)) == 700_000


def test_version_one_groups_count(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n",
        "cgroup/memory/a/memory.limit_in_bytes": "3000\n",
        "cgroup/memory/a/memory.usage_in_bytes": "4000\n",
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/memory.usage_in_bytes": "4000\n",
    }
    assert available_bytes(*lay_out(tmp_path, files)) == 0


def test_unknown_memory_refuses_nothing(tmp_path: Path) -> None:
    available = available_bytes(tmp_path, tmp_path)
    assert available is None
    require(1 << 60, "model", available)


def test_this_machine_reports_its_memory() -> None:
    found = available_bytes()
    assert found is not None and found > 1 << 20


def test_too_little_memory_names_both_sizes_and_remedies() -> None:
    require(1000, "model", 1000 + MARGIN)
    with pytest.raises(
        ResourceError, match=r"model: needs 5000000000 bytes \(5\.0 GB\), 1000 bytes .*load=mmap"
    ) as caught:
        require(5_000_000_000, "model", 1000)
    assert caught.value.exit_status == 1
