"""How many processor cores this process can use."""

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at most the quota of its control groups (cgroup v2),
    rounded up. A container with `--cpus 1.5` on a large machine has 2."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(math.ceil(min(cores, _quota())), 1)


def _quota() -> float:
    """Return the smallest quota of the control group and those around it, in cores; infinite without one."""
    if not _OWN_GROUP.is_file():  # not Linux
        return math.inf
    own_group = next((line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::")), "/")
    group = _GROUPS / own_group.lstrip("/")
    quotas = [math.inf]
    for ancestor in (group, *group.parents):
        limit = ancestor / "cpu.max"
        if ancestor.is_relative_to(_GROUPS) and limit.is_file():
            quota, period = limit.read_text().split()
            quotas.append(math.inf if quota == "max" else int(quota) / int(period))
    return min(quotas)
