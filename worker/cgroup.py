"""What the control groups of this process leave of its memory limit, for containers: /proc/meminfo shows the host's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# File names of limit and use, and the key of reclaimable page cache in memory.stat, per version of the interface.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def memory_headroom(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that may still be used under the tightest limit of this process's groups and their ancestors; None where
    there is no limit. Page cache that the kernel can drop counts as free."""
    headrooms = [
        headroom
        for directory, names in _groups(membership, mount)
        if (headroom := _group_headroom(directory, *names)) is not None
    ]
    return min(headrooms, default=None)


def _groups(membership: Path, mount: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Directories of the memory controller, from the process's own group up to the mount."""
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, _V2
        elif "memory" in controllers.split(","):
            root, names = mount / "memory", _V1
        else:
            continue
        group = root / path.lstrip("/")
        yield from ((directory, names) for directory in (group, *group.parents) if directory.is_relative_to(root))


def _group_headroom(directory: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    limit_file = directory / limit_name
    if not limit_file.exists():  # the root group, or a path outside this container's namespace
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    used = int((directory / usage_name).read_text()) - int(stat.get(reclaimable_name, 0))
    return max(0, int(limit) - used)
