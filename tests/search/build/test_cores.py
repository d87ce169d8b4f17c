"""How many cores there are, with control groups of both versions in a folder."""

import os
from pathlib import Path

import pytest

from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.cores import available_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


def cores(folder: Path, group: str, limits: dict[str, str]) -> int:
    """The cores that are found where this process is in `group` and control groups have these files."""
    (folder / "cgroup").write_text(group)
    for name, content in limits.items():
        path = folder / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return available_cores(folder / "cgroup", folder / "mount")


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "500000 100000"}, 5),
        ("0::/\n", {"cpu.max": "what is this"}, 8),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_smallest_quota(
    tmp_path: Path, group: str, limits: dict[str, str], expected: int
) -> None:
    assert cores(tmp_path, group, limits) == expected


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "none", tmp_path) == 8


def test_the_compilers_are_counted_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert CompileOptions().processes == 1
    assert CompileOptions(processes=5).processes == 5
