"""Control groups that limit the memory of programs and daemons."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pool import eventually

_groups = itertools.count()


class ControlGroup:
    """A control group of little memory, of version 1 or 2, whichever limits memory on this machine."""

    def __init__(self, path: Path, limit: str, memory_bytes: int) -> None:
        self.path = path
        path.mkdir()
        (path / limit).write_text(str(memory_bytes))

    @property
    def processes(self) -> Path:
        """The file that lists the group's processes, and takes new ones in."""
        return self.path / "cgroup.procs"

    @property
    def is_fair(self) -> bool:
        """Whether a program that wants memory need not wait for pages that another has to write: version 2."""
        return (self.path / "memory.max").exists()

    def was_short(self) -> bool:
        """Whether programs had to give memory back because the group reached its limit."""
        version_2 = self.path / "memory.events"
        if version_2.exists():
            return any(
                line.split()[0] == "max" and line.split()[1] != "0" for line in version_2.read_text().splitlines()
            )
        return int((self.path / "memory.failcnt").read_text()) > 0

    def killed(self) -> int:
        """Return how many processes were killed for want of memory."""
        version_2 = self.path / "memory.events"
        counts = (version_2 if version_2.exists() else self.path / "memory.oom_control").read_text()
        return int(next(line for line in counts.splitlines() if line.startswith("oom_kill ")).split()[1])


@contextmanager
def control_group(memory_bytes: int) -> Iterator[ControlGroup]:
    """Make a control group of little memory; skips where there is none to be had."""
    found = _place_of_groups()
    if not found:
        pytest.skip("control groups do not limit memory here")
    place, limit = found
    group = ControlGroup(place / f"ramlace-test-{os.getpid()}-{next(_groups)}", limit, memory_bytes)
    try:
        yield group
    finally:
        assert eventually(lambda: not group.processes.read_text())
        group.path.rmdir()


def _place_of_groups() -> tuple[Path, str] | None:
    """Return where groups can be made, and the file that sets their limit."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = [line[3:].lstrip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    # Beside the group of this process or below it, wherever groups may limit memory.
    places = [place for root in roots for name in own for place in {root / name, (root / name).parent, root}]
    version_2 = [(place, "memory.max") for place in places if "memory" in _controllers_below(place)]
    version_1 = [
        (Path(fields[1]), "memory.limit_in_bytes")
        for fields in mounts
        if fields[2] == "cgroup" and "memory" in fields[3].split(",")
    ]
    return next(iter(version_2 + version_1), None)


def _controllers_below(group: Path) -> list[str]:
    try:
        return (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
