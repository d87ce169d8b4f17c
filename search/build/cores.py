"""How many processes can work at the same time."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: those of its affinity mask, or fewer if a cgroup's CPU quota is smaller.

    Containers are limited by such quotas: on a host of 64 cores `os.cpu_count` says 64 in a container that gets 4.

    Parameters
    ----------
    groups, mount
        Where the kernel lists the control groups of this process, and where they are mounted.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(math.ceil, _quotas(groups, mount))]))


def _quotas(groups: Path, mount: Path) -> Iterator[float]:
    """The CPU quotas of the control groups that this process is in, in cores; a group has those of its parents too."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = mount / "cpu" if "cpu" in controllers.split(",") else mount
        if controllers and top == mount:
            continue
        group = top / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(top):  # in a container the path may be the host's: then the top is what is left
                yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    """The quota of one control group: `cpu.max` in version 2, two files in version 1; none if it is unlimited."""
    try:
        if (limit := folder / "cpu.max").is_file():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if quota != "max" and int(quota) > 0:  # version 1 says -1
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return
